package instance

import (
	"context"
	"sync"
	"time"
)

const (
	// maxDials bounds the simultaneous attempts to connect. An attempt whose host has not answered after slowDial no
	// longer counts: it costs next to nothing, and many such hosts would hold up all others.
	maxDials = 32
	slowDial = 2 * time.Second
	// maxServerDials bounds those to one server: sshd refuses some logins if more than ten are under way (MaxStartups
	// in sshd_config).
	maxServerDials = 8
)

// pacer bounds the attempts to connect, to all hosts together and to each server. Waiters for the same slots are
// served in order.
type pacer struct {
	slots chan struct{} // holds one token for each attempt under way that is not slow

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

// turn holds the slots of one attempt.
type turn struct {
	free  func()      // returns the slot of all hosts, once
	slow  *time.Timer // calls free; nil before wait
	leave func()      // returns the slots; called when the attempt has ended
}

// wait is called once, when the attempt begins to wait for its host.
func (t *turn) wait() { t.slow = time.AfterFunc(slowDial, t.free) }

// enter waits until one more attempt may start at the server. The caller calls leave when the attempt has ended. If ctx
// ends first, enter returns its cause and holds no slot.
func (p *pacer) enter(ctx context.Context, server string) (*turn, error) {
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
			return p.turn(s, server), nil
		}
		<-s.slots
	}
	p.forget(server)
	return nil, err
}

// turn returns the turn of an attempt that has its slots.
func (p *pacer) turn(s *serverSlots, server string) *turn {
	t := &turn{free: sync.OnceFunc(func() { <-p.slots })}
	t.leave = func() {
		if t.slow != nil {
			t.slow.Stop()
		}
		t.free()
		<-s.slots
		p.forget(server)
	}
	return t
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
