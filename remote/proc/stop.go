package proc

import (
	"sync"
	"time"
)

// stopper carries out a Stop: it calls term now, kill after the grace, and abandon after the timeout unless the process
// has ended. Its funcs do not block. They are called in this order, each at most once.
type stopper struct {
	term, kill, abandon func()
	timeout             time.Duration

	mu     sync.Mutex // guards the following, and is held while the funcs run
	killed bool
	over   bool
	timers []*time.Timer // one for each stop with a grace, and one for the timeout
}

// stop begins, or brings the kill forward.
func (s *stopper) stop(grace time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.killed || s.over:
	case grace <= 0:
		s.killed = true
		s.kill()
		s.timers = append(s.timers, time.AfterFunc(s.timeout, s.giveUp))
	default:
		if len(s.timers) == 0 {
			s.term()
		}
		s.timers = append(s.timers, time.AfterFunc(grace, func() { s.stop(0) }))
	}
}

func (s *stopper) giveUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.abandon()
	}
}

// end stops the timers at any time. No func runs after it.
func (s *stopper) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	for _, timer := range s.timers {
		timer.Stop()
	}
}
