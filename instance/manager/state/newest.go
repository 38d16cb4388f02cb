package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
)

// Newest calls take for the records that were changed last, the last first, until it returns false.
func (s *Store) Newest(ctx context.Context, take func(*Record) bool) error {
	info, err := s.history.Info(ctx)
	if err != nil {
		return fmt.Errorf("list the builds: %w", err)
	}
	first, width := info.State.FirstSeq, uint64(listStride)
	for high := info.State.LastSeq; high >= first && high > 0; {
		low := max(high-min(high-1, width-1), first)
		found, err := s.recordsIn(ctx, low, high, width > listStride)
		switch {
		case err != nil:
			return fmt.Errorf("list the builds: %w", err)
		case len(found) == 0:
			high, width = low-1, 2*width
			continue
		case width > listStride:
			width = listStride
			continue
		}
		for _, msg := range slices.Backward(found) {
			r := new(Record)
			if len(msg.Data) == 0 || json.Unmarshal(msg.Data, r) != nil || r.ID == "" {
				continue // the mark of a build that is not kept any more, or a lease
			}
			if !take(r) {
				return nil
			}
		}
		high = low - 1
	}
	return nil
}

// listStride is how many places in the history of builds are read at once. Most places are empty: a later revision took
// the place of a record, or a lease had it. Larger parts are only asked for their first record, to pass over them.
const listStride = 256

// recordsIn returns the messages between two places in the history of builds, or only the first of them.
func (s *Store) recordsIn(
	ctx context.Context, low, high uint64, onlyFirst bool,
) (found []*jetstream.RawStreamMsg, err error) {
	for low <= high && (!onlyFirst || len(found) == 0) {
		msg, err := s.history.GetMsg(ctx, low, jetstream.WithGetMsgSubject("$KV."+buildsBucket+".>"))
		if errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && msg.Sequence > high {
			break
		}
		if err != nil {
			return nil, err
		}
		found, low = append(found, msg), msg.Sequence+1
	}
	return found, nil
}
