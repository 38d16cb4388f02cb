package mux

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/pause"
)

// budget is a first-come first-served semaphore over the sessions that the server allows on a connection. Their number
// may be unknown until the server refuses one. A budget without a limit also counts channels of other kinds.
type budget struct {
	scarce func() // called without the lock when a caller begins to wait for slots; may be nil

	mu      sync.Mutex // guards the following
	limit   int        // sessions the server allows; 0 while unknown, or if this budget has no limit
	learned bool
	taken   int       // slots handed out
	open    int       // sessions the server has confirmed and not closed; <= taken
	peak    int       // the most that were open at once
	waiters list.List // of *slotWaiter, oldest first
	refused uint64
	last    time.Time // when a caller last got all the sessions it asked for

	good, raiseAfter int // sessions opened since the last refusal; how many it takes to try a larger limit
}

const minRaiseAfter, maxRaiseAfter = 32, 4096

type slotWaiter struct {
	n     int
	ready chan struct{} // closed once the slots are taken
}

// budgetLocked returns how many slots are handed out at once. A server frees a session only some time after its close,
// so a budget of the whole limit meets refusals all the time; with two less it hardly ever does. Small limits are used
// whole; refused opens are tried again.
func (s *budget) budgetLocked() int {
	if s.limit >= 5 {
		return s.limit - 2
	}
	return s.limit
}

// fitsLocked reports whether n slots are free. If no slot is taken, it says yes to any n: the server then refuses if
// it allows fewer.
func (s *budget) fitsLocked(n int) bool {
	return s.limit == 0 || s.taken == 0 || s.taken+n <= s.budgetLocked()
}

// tryAcquire takes n slots if they are free and no caller waits.
func (s *budget) tryAcquire(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiters.Len() > 0 || !s.fitsLocked(n) {
		return false
	}
	s.taken += n
	return true
}

// wanted reports whether a caller is waiting for slots.
func (s *budget) wanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiters.Len() > 0
}

// acquire takes n slots together. Callers that have to wait are served in the order of their calls.
func (s *budget) acquire(ctx context.Context, done <-chan struct{}, n int) error {
	w := &slotWaiter{n: n, ready: make(chan struct{})}
	s.mu.Lock()
	place := s.waiters.PushBack(w)
	s.grantLocked()
	s.mu.Unlock()
	if s.scarce != nil && !pause.Done(w.ready) {
		s.scarce()
	}

	var err error
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-done:
		err = ErrClosed // the caller asks the connection for the true reason
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-w.ready: // granted in the meantime
		s.taken -= n
	default:
		s.waiters.Remove(place)
	}
	s.grantLocked()
	return err
}

// grantLocked gives free slots to the waiters, oldest first.
func (s *budget) grantLocked() {
	for e := s.waiters.Front(); e != nil; e = s.waiters.Front() {
		w := e.Value.(*slotWaiter)
		if !s.fitsLocked(w.n) {
			return
		}
		s.taken += w.n
		s.waiters.Remove(e)
		close(w.ready)
	}
}

// opened counts a session the server has confirmed.
//
// A learned limit may be too small: we had not counted opens that were still unanswered, or sessions that we had
// closed were not free yet. So the limit grows to the highest number seen open. And after many opens without a
// refusal, while callers wait, one more session is tried. Each refusal doubles the number of opens before the next
// such try.
func (s *budget) opened() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open++
	s.peak = max(s.peak, s.open)
	if !s.learned {
		return
	}
	s.good++
	switch {
	case s.open > s.limit:
		s.limit = s.open
	case s.good >= s.raiseAfter && s.waiters.Len() > 0:
		s.limit++
		s.good = 0
	default:
		return
	}
	s.grantLocked()
}

// served notes that a caller got all the sessions it asked for.
func (s *budget) served() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = time.Now()
}

// servedSince reports whether the server has had n sessions open at once and, after t, a caller got its sessions.
func (s *budget) servedSince(t time.Time, n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peak >= n && s.last.After(t)
}

// closed gives a slot back. If its session was open, that counts as closed too.
func (s *budget) closed(wasOpen bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	if wasOpen {
		s.open--
	}
	if s.taken < 0 {
		panic("BUG: mux: more sessions released than taken")
	}
	s.grantLocked()
}

// refuse learns from a refusal and returns how many sessions are open. The first refusal sets the limit to the most
// that were open at once. A later refusal undoes the last trial increase. The limit never falls lower: the server
// refuses also because it has not freed a session yet.
func (s *budget) refuse() (open int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused++
	s.good = 0
	switch {
	case s.limit == 0:
		s.learned, s.raiseAfter = true, minRaiseAfter
		s.limit = max(s.peak, 1)
	case s.learned:
		s.raiseAfter = min(2*s.raiseAfter, maxRaiseAfter)
		s.limit = max(s.peak, s.limit-1, 1)
	}
	return s.open
}

func (s *budget) stat() SessionStat {
	s.mu.Lock()
	defer s.mu.Unlock()
	return SessionStat{
		Taken:   s.taken,
		Open:    s.open,
		Peak:    s.peak,
		Waiting: s.waiters.Len(),
		Limit:   s.limit,
		Learned: s.learned,
		Refused: s.refused,
	}
}

// backoff returns the wait before try number n (from 0) of a refused open: 5 ms doubled up to 320 ms.
func backoff(n int) time.Duration { return 5 * time.Millisecond << min(n, 6) }
