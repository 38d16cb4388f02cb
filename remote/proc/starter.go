package proc

import (
	"context"
	"sync"
)

// Starter starts commands as [Start] does, and keeps one shim prestarted: most of the time of a command's start goes
// into its shim. The zero value is ready to use. Its owner calls Close at the end. It is safe for concurrent use.
type Starter struct {
	mu     sync.Mutex      // guards the following
	next   func() *Process // returns the prestarted shim once it is made, nil if that failed; nil if no shim is prestarted
	closed bool

	makers sync.WaitGroup
}

// Start is [Start], with the prestarted shim if there is one. Then it prestarts another.
func (s *Starter) Start(ctx context.Context, c Command) (*Process, error) {
	p, err := startBy(ctx, &c, s.shim)
	if err == nil {
		s.Prepare()
	}
	return p, err
}

// shim returns the prestarted shim, after a wait if it is being made, or else a new one.
func (s *Starter) shim() (*Process, error) {
	p := s.take()
	if p == nil {
		return launch()
	}
	select {
	case <-p.gone: // it was killed
		_ = p.Close()
		return launch()
	default:
		return p, nil
	}
}

// take takes the prestarted shim, which is nil if there is none.
func (s *Starter) take() *Process {
	s.mu.Lock()
	next := s.next
	s.next = nil
	s.mu.Unlock()
	if next == nil {
		return nil
	}
	return next()
}

// Prepare prestarts a shim, unless there is one. It does not wait, and does nothing while the most commands that may
// start at a time are starting.
func (s *Starter) Prepare() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != nil || s.closed {
		return
	}
	select {
	case startSlots <- struct{}{}:
	default:
		return
	}
	next := sync.OnceValue(func() *Process {
		p, _ := launch() // if it fails, the next Start returns the error
		return p
	})
	s.next = next
	s.makers.Go(func() {
		next()
		<-startSlots
	})
}

// Close ends the prestarted shim, and waits until it is gone. It does not touch commands that were started. A later
// Start starts its own shim. It is idempotent.
func (s *Starter) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	if p := s.take(); p != nil {
		_ = p.Close() // without a command it always ends
	}
	s.makers.Wait()
}
