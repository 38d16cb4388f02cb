package pool

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// pacer bounds the dials of all keys together, in number and pace, and the number of those at one server. Who
// waits for the same is served in order.
type pacer struct {
	mu       sync.Mutex              // guards the following
	servers  map[string]*serverSlots // of which somebody has or wants a slot
	atServer int                     // the size of each

	slots   chan struct{} // holds one token for each dial under way
	gate    chan struct{} // holds one token while somebody waits out the spacing
	spacing time.Duration
	last    time.Time // when the last dial started; whoever holds the gate may touch it
}

// serverSlots is a pacer's slots for one server.
type serverSlots struct {
	slots chan struct{} // holds one token for each dial under way
	users int           // who has or wants one; guarded by pacer.mu
}

func newPacer(slots, atServer int, spacing time.Duration) *pacer {
	return &pacer{
		servers: map[string]*serverSlots{}, atServer: atServer,
		slots: make(chan struct{}, slots), gate: make(chan struct{}, 1), spacing: spacing,
	}
}

// enter waits until one more dial may start at the server, which is no other's if it has no name. The caller calls
// leave when the dial is over. If ctx ends first, enter returns its cause and has left no mark: those behind do not
// wait for the turn that was not taken.
func (f *pacer) enter(ctx context.Context, server string) error {
	if err := f.enterServer(ctx, server); err != nil {
		return err
	}
	if err := put(ctx, f.slots); err != nil { // only who has a slot at the server takes one of these
		f.leaveServer(server)
		return err
	}
	if f.spacing == 0 {
		return nil
	}
	err := put(ctx, f.gate)
	if err == nil {
		if err = waitUntil(ctx, f.last.Add(f.spacing)); err == nil {
			f.last = time.Now()
		}
		<-f.gate
	}
	if err != nil {
		f.leave(server)
	}
	return err
}

// enterServer waits for a slot at the server.
func (f *pacer) enterServer(ctx context.Context, server string) error {
	if server == "" {
		return nil
	}
	f.mu.Lock()
	s := f.servers[server]
	if s == nil {
		s = &serverSlots{slots: make(chan struct{}, f.atServer)}
		f.servers[server] = s
	}
	s.users++
	f.mu.Unlock()
	err := put(ctx, s.slots)
	if err != nil {
		f.forgetServer(server)
	}
	return err
}

// leave gives back what enter took.
func (f *pacer) leave(server string) {
	<-f.slots
	f.leaveServer(server)
}

// leaveServer gives back what enterServer took.
func (f *pacer) leaveServer(server string) {
	if server == "" {
		return
	}
	f.mu.Lock()
	s := f.servers[server]
	f.mu.Unlock()
	<-s.slots
	f.forgetServer(server)
}

// forgetServer counts one user of the server less.
func (f *pacer) forgetServer(server string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.servers[server]
	if s.users--; s.users == 0 {
		delete(f.servers, server)
	}
}

// put waits until tokens has room for one more.
func put(ctx context.Context, tokens chan struct{}) error {
	select {
	case tokens <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// waitUntil waits until t.
func waitUntil(ctx context.Context, t time.Time) error {
	d := time.Until(t)
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// backoff returns the pause after the n-th failure in a row, n from 1: base doubled n-1 times, at
// most limit, less up to half of it at random.
func backoff(base, limit time.Duration, n int) time.Duration {
	d := min(base, limit)
	for i := 1; i < n && d < limit; i++ {
		d += min(d, limit-d)
	}
	return d - rand.N(d/2+1)
}
