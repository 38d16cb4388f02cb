package state

import (
	"context"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go/jetstream"
)

// ended are the builds that have ended and whose requests are still in the queue. They leave it once a second, since
// removing many together costs the store one sync. A request that comes again before, or after a crash, is known by
// its build's record.
type ended struct {
	mu     sync.Mutex             // guards the following
	builds map[uint64]*endedBuild // by their places in the queue
	last   uint64                 // the last place of those that were there a second ago
}

// endedBuild has the fields of a build that are needed: a request may be large.
type endedBuild struct {
	id    string
	reply string // where the queue gets its acknowledgment; may be empty
}

// removeEnded takes requests of builds that have ended out of the queue: together those at its head, and one by one the
// last in the queue and those that have waited a second for one before them.
func (s *Store) removeEnded(ctx context.Context) {
	s.ended.mu.Lock()
	defer s.ended.mu.Unlock()
	if len(s.ended.builds) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	info, err := s.queue.Info(ctx)
	if err != nil {
		return // the next call does it
	}
	first, last := info.State.FirstSeq, info.State.LastSeq
	next := first
	for next < last && s.ended.builds[next] != nil { // to remove all, the store would rename directories without a sync
		next++
	}
	if next > first {
		// Without a subject, if the requests from next on were deleted before, the server keeps a wrong first place, and the
		// next purge takes a request too many.
		subject := jetstream.WithPurgeSubject(queueSubject)
		if err := s.queue.Purge(ctx, jetstream.WithPurgeSequence(next), subject); err != nil {
			return
		}
	}
	late := s.ended.last
	for seq, b := range s.ended.builds {
		switch {
		case seq < next: // it has gone
		case seq <= late || seq == last:
			if b.reply != "" {
				_ = s.Conn.Publish(b.reply, nil) // an acknowledgment; else it comes again
			}
		default:
			s.ended.last = max(s.ended.last, seq)
			continue
		}
		delete(s.ended.builds, seq)
	}
}

// InQueue returns how many requests the queue has, and adds the builds among them that have ended to taken.
func (s *Store) InQueue(ctx context.Context, taken map[string]bool) (uint64, error) {
	s.ended.mu.Lock()
	defer s.ended.mu.Unlock()
	for _, b := range s.ended.builds {
		taken[b.id] = true
	}
	info, err := s.queue.Info(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the queue: %w", err)
	}
	return info.State.Msgs, nil
}

// hasEnded reports whether the build of a request in the queue has ended.
func (s *Store) hasEnded(seq uint64) bool {
	s.ended.mu.Lock()
	defer s.ended.mu.Unlock()
	return s.ended.builds[seq] != nil
}
