package proc

import (
	"sync"
	"time"
)

// stopper is the course of a Stop: term now, kill after the grace, and abandon after the timeout if the process has not
// ended by then. Its funcs do not block, and are called in this order, each at most once.
type stopper struct {
	term, kill, abandon func()
	timeout             time.Duration

	mu    sync.Mutex  // guards the following, and is held while the funcs run
	phase phase       // how far the course has come
	timer *time.Timer // runs next; nil before the first stop
	due   time.Time   // when it runs next; a next that runs earlier has been re-armed
}

type phase int

const (
	idle phase = iota
	asked
	killed
	over
)

// stop begins the course, or brings the kill forward.
func (s *stopper) stop(grace time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase >= killed {
		return
	}
	if grace <= 0 {
		s.killLocked()
		return
	}
	at := time.Now().Add(grace)
	if s.phase == asked && !at.Before(s.due) {
		return
	}
	if s.phase == idle {
		s.phase = asked
		s.term()
	}
	s.armLocked(grace)
}

// next runs when the timer does.
func (s *stopper) next() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().Before(s.due) {
		return
	}
	switch s.phase {
	case asked:
		s.killLocked()
	case killed:
		s.phase = over
		s.abandon()
	case idle, over:
	}
}

func (s *stopper) killLocked() {
	s.phase = killed
	s.kill()
	s.armLocked(s.timeout)
}

func (s *stopper) armLocked(d time.Duration) {
	if s.timer != nil {
		s.timer.Stop()
	}
	s.due = time.Now().Add(d)
	s.timer = time.AfterFunc(d, s.next)
}

// end ends the course at any phase. No func runs after it.
func (s *stopper) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phase = over
	if s.timer != nil {
		s.timer.Stop()
	}
}
