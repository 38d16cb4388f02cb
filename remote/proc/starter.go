package proc

import (
	"context"
	"sync"
)

// Starter starts commands as [Start] does, and keeps one shim prestarted: most of the time of a command's start goes
// into its shim. The zero value is ready to use. Its owner calls Close at the end. It is safe for concurrent use.
type Starter struct {
	mu     sync.Mutex    // guards the following
	ready  *Process      // has a shim and no command; may be nil
	making chan struct{} // closed once the next ready shim is made; nil if no shim is being made
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
	p, making := s.take()
	if making != nil {
		<-making
		p, _ = s.take()
	}
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

// take takes the prestarted shim. If one is being made, it returns a channel to wait for it.
func (s *Starter) take() (p *Process, making <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, s.ready = s.ready, nil
	return p, s.making
}

// Prepare prestarts a shim, unless there is one. It does not wait, and does nothing while the most commands that may
// start at a time are starting.
func (s *Starter) Prepare() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready != nil || s.making != nil || s.closed {
		return
	}
	select {
	case startSlots <- struct{}{}:
	default:
		return
	}
	s.making = make(chan struct{})
	s.makers.Go(s.make)
}

// make prestarts a shim. If that fails, the next Start returns the error.
func (s *Starter) make() {
	p, _ := launch()
	startSlots.release()
	s.mu.Lock()
	close(s.making)
	s.making = nil
	if !s.closed {
		s.ready, p = p, nil
	}
	s.mu.Unlock()
	if p != nil {
		_ = p.Close() // without a command it always ends
	}
}

// Close ends the prestarted shim, and waits until it is gone. It does not touch commands that were started. A later
// Start starts its own shim. It is idempotent.
func (s *Starter) Close() {
	s.mu.Lock()
	s.closed = true
	p := s.ready
	s.ready = nil
	s.mu.Unlock()
	s.makers.Wait()
	if p != nil {
		_ = p.Close() // as above
	}
}
