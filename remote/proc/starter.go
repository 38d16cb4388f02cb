package proc

import (
	"context"
	"sync"
)

// Starter starts commands as [Start] does, and keeps one shim ready: most of what it takes to start a
// command is to start its shim. The zero value is ready to use. Whoever has one calls Close at the end. It
// is safe for concurrent use.
type Starter struct {
	mu     sync.Mutex    // guards the following
	ready  *Process      // has a shim and no command; nil if there is none
	making chan struct{} // closed when what is being made ready is; nil if nothing is
	closed bool

	makers sync.WaitGroup
}

// Start is [Start], by the shim that is ready if there is one. Then it gets another ready.
func (s *Starter) Start(ctx context.Context, c Command) (*Process, error) {
	p, err := startBy(ctx, &c, s.shim)
	if err == nil {
		s.Prepare()
	}
	return p, err
}

// shim returns the one that is ready, or about to be, or a new one.
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
	case <-p.gone: // whatever killed it, others can be started
		_ = p.Close() // nothing of it is left
		return launch()
	default:
		return p, nil
	}
}

// take takes the shim that is ready. If there is none, it may return what to wait for.
func (s *Starter) take() (p *Process, making <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, s.ready = s.ready, nil
	return p, s.making
}

// Prepare lets a shim be ready soon, if none is. It does not wait for it, and it leaves the machine alone
// while as many commands are being started as may.
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

// make gets a shim ready. Should that fail, the next Start says why.
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
		_ = p.Close() // it has no command that could resist
	}
}

// Close gives up the shim that is ready, and waits until it has gone. Commands that were started are not
// touched, and Start can still be called: it is as Start without a Starter then. It is idempotent.
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
