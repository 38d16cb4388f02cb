package instance

import (
	"context"
	"sync"
)

const (
	// maxDials bounds the simultaneous attempts to connect.
	maxDials = 32
	// maxServerDials bounds those to one server: sshd refuses some logins if more than ten are under way (MaxStartups
	// in sshd_config).
	maxServerDials = 8
)

// pacer bounds the attempts to connect, to all hosts together and to each server. Waiters for the same slots are
// served in order.
type pacer struct {
	slots chan struct{} // holds one token for each attempt under way

	mu      sync.Mutex              // guards the following
	servers map[string]*serverSlots // the servers with users
}

// serverSlots is a pacer's slots for one server.
type serverSlots struct {
	slots chan struct{} // holds one token for each attempt under way
	users int           // attempts that hold or wait for a slot; guarded by pacer.mu
}

func newPacer() *pacer {
	return &pacer{slots: make(chan struct{}, maxDials), servers: map[string]*serverSlots{}}
}

// enter waits until one more attempt may start at the server. The caller calls leave when the attempt is over. If ctx
// ends first, enter returns its cause and holds no slot.
func (p *pacer) enter(ctx context.Context, server string) error {
	p.mu.Lock()
	s := p.servers[server]
	if s == nil {
		s = &serverSlots{slots: make(chan struct{}, maxServerDials)}
		p.servers[server] = s
	}
	s.users++
	p.mu.Unlock()
	err := put(ctx, s.slots)
	if err == nil {
		if err = put(ctx, p.slots); err == nil { // last, so that an attempt that waits for its server does not hold up others
			return nil
		}
		<-s.slots
	}
	p.forget(server)
	return err
}

// leave returns the slots that enter took.
func (p *pacer) leave(server string) {
	<-p.slots
	p.mu.Lock()
	s := p.servers[server]
	p.mu.Unlock()
	<-s.slots
	p.forget(server)
}

// forget removes one user of the server.
func (p *pacer) forget(server string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.servers[server]
	if s.users--; s.users == 0 {
		delete(p.servers, server)
	}
}

// put adds one token, and waits until there is room.
func put(ctx context.Context, tokens chan struct{}) error {
	select {
	case tokens <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
