package state

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go/jetstream"
)

// readMarks are places in logs up to which somebody has read: most readers go on there. The zero value is ready for
// use. It is safe for concurrent use.
type readMarks struct {
	mu  sync.Mutex // guards the following
	all map[string]mark
}

// mark is a piece of a log: the offset of its first byte, that after its last one, and its sequence in the stream.
type mark struct {
	begin, end int64
	place      uint64
}

// maxMarks bounds the logs with a mark.
const maxMarks = 1000

// set sets the mark of a log. If there are too many, another log loses its one.
func (m *readMarks) set(id string, to mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = map[string]mark{}
	}
	if _, known := m.all[id]; !known && len(m.all) >= maxMarks {
		for other := range m.all {
			delete(m.all, other)
			break
		}
	}
	m.all[id] = to
}

// least returns a sequence that is not after the first piece of a log with bytes at or beyond offset, and whether it is
// that of this piece.
func (m *readMarks) least(id string, offset int64) (place uint64, exact bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch at, known := m.all[id]; {
	case !known || offset < at.begin:
		return 1, false
	case offset < at.end:
		return at.place, true
	default:
		return at.place + 1, offset == at.end
	}
}

// seekLog returns the sequence of the first piece of a build's log that holds bytes at or beyond offset, or last, the
// sequence of the log's last piece. The pieces of a log are in order in the stream, between those of other logs. A
// search loads blocks of the stream from the disk, each of which the store then holds for a while.
func (s *Store) seekLog(ctx context.Context, id string, offset int64, last uint64) (uint64, error) {
	low, exact := s.places.least(id, offset)
	if exact {
		return min(low, last), nil
	}
	high := last
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
