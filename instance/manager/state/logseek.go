package state

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// seekLog returns the sequence of the first piece of a build's log that holds bytes at or beyond offset, or last, the
// sequence of the log's last piece. The pieces of a log are in order in the stream, between those of other logs.
func (s *Store) seekLog(ctx context.Context, id string, offset int64, last uint64) (uint64, error) {
	low, high := uint64(1), last
	for offset > 0 && low < high {
		middle := low + (high-low)/2
		msg, err := s.logs.GetMsg(ctx, middle, jetstream.WithGetMsgSubject(logsSubject+id)) // or the first after it
		if errors.Is(err, jetstream.ErrMsgNotFound) {                                       // all were removed in between
			break
		}
		if err != nil {
			return 0, fmt.Errorf("read the log of %s: %w", id, err)
		}
		p, err := pieceOf(msg.Header, msg.Data)
		switch {
		case err != nil:
			return 0, fmt.Errorf("read the log of %s: %w", id, err)
		case p.Offset+int64(len(p.Text)) > offset:
			high = middle
		default:
			low = msg.Sequence + 1
		}
	}
	return min(low, last), nil
}
