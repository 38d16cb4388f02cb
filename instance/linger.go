package instance

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/pool"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// MaxLinger is the longest Build.Linger.
const MaxLinger = vmconfig.MaxLinger

// hasteMax is the longest pause between two attempts to connect to a host while a build waits to reconnect to it, or
// through it.
const hasteMax = 500 * time.Millisecond

// linger returns how long the build may continue without its connection, on the instance of a slot.
func (e *Executor) linger(s *slot) time.Duration {
	if e.build.Linger != nil {
		return *e.build.Linger
	}
	return s.placement.Linger
}

// leaseToStart is again for a build that is about to start. If the build lingers, it waits that long for its
// instance, unless leave returns true.
func (e *Executor) leaseToStart(ctx context.Context, s *slot, leave func() bool) (*pool.Lease[*mux.Conn], error) {
	linger := e.linger(s)
	if linger <= 0 {
		return e.again(ctx, s)
	}
	timed, cancel := context.WithTimeoutCause(ctx, linger, errAway)
	defer cancel()
	return e.reconnect(timed, s, leave)
}

// stay is the leave of a build that does not leave its instance.
func stay() bool { return false }

// mayLeave returns a function that reports whether a build that has not started yet may move to another instance.
func (e *Executor) mayLeave(s *slot) (leave func() bool) {
	e.mu.Lock()
	stays := e.stays || e.resumed || e.running != nil
	e.mu.Unlock()
	if stays || e.tries+1 >= maxTries || e.trying+time.Since(e.Started()) > maxTrying {
		return stay
	}
	others := e.demandBeside(s)
	return func() bool { return e.provider.cfg.Group.hasOther(others, true) }
}

// waitFor waits for an instance that could not be reached because of err, if the build lingers and as long as no other
// instance is suitable.
func (e *Executor) waitFor(ctx context.Context, s *slot, err error) (lease *pool.Lease[*mux.Conn], _ error) {
	group, others := e.provider.cfg.Group, e.demandBeside(s)
	if e.linger(s) <= 0 {
		return nil, err
	}
	timed, cancel := context.WithTimeoutCause(ctx, e.linger(s), errAway)
	defer cancel()
	for err != nil { // with the usual pauses: nothing of the build runs there
		failed, ok := errors.AsType[*dialError](err)
		if !ok || failed.permanent || group.hasOther(others, false) {
			return nil, err
		}
		lease, err = e.again(timed, s)
	}
	group.reached(s)
	return lease, nil
}

// errAway ends the wait for an instance that cannot be reached.
var errAway = errors.New("the instance could not be reached for the time of the build's linger")

// reconnect repeats again, with short pauses, until the instance can be reached. It returns at once if the login or
// the host key is refused, or if leave returns true.
func (e *Executor) reconnect(ctx context.Context, s *slot, leave func() bool) (*pool.Lease[*mux.Conn], error) {
	defer e.provider.cfg.Group.hasten(s.placement.ID)()
	for {
		lease, err := e.again(ctx, s)
		failed, ok := errors.AsType[*dialError](err)
		if err == nil || ctx.Err() != nil || !ok || failed.permanent || leave() {
			return lease, err
		}
	}
}

// hasten keeps the pauses between attempts to connect to a host, and to the jump hosts on the way to it, short until
// done is called.
func (g *Group) hasten(id string) (done func()) {
	h, err := g.findHost(id)
	if err != nil {
		return func() {}
	}
	g.mu.Lock()
	defer g.unlock()
	if g.awaited == nil {
		g.awaited = map[string]int{}
	}
	now := time.Now()
	soon := now.Add(hasteMax)
	for _, id := range h.path {
		g.awaited[id]++
		if on := g.hosts[id]; on != nil && on.health.retryAt.After(soon) && on.health.refused(now) == nil {
			on.health.retryAt = soon
		}
	}
	return func() {
		g.mu.Lock()
		defer g.unlock()
		for _, id := range h.path {
			if g.awaited[id]--; g.awaited[id] == 0 {
				delete(g.awaited, id)
			}
		}
	}
}

// isAwaited reports whether a build waits to reconnect to a host, or through it.
func (g *Group) isAwaited(id string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.awaited[id] > 0
}

const (
	// hastyPause is the time between two attempts of dialHastily, and hastyConnect how long each waits for an answer.
	hastyPause, hastyConnect = 250 * time.Millisecond, 3 * time.Second
	// hastyMost is the largest number of simultaneous attempts.
	hastyMost = int(hastyConnect / hastyPause)
)

// dialHastily connects by TCP to an address that may not answer for a while, and succeeds soon after it answers
// again. The kernel doubles the pause before each retransmission, so dialHastily starts new attempts all the time.
// Earlier attempts continue, because the round trip may be long.
func dialHastily(ctx context.Context, addr string) (net.Conn, error) {
	type attempt struct {
		nc  net.Conn
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan attempt, hastyMost)
	tick := time.NewTicker(hastyPause)
	defer tick.Stop()
	due := true
	for running := 0; ; {
		if due && running < hastyMost && len(ended) == 0 {
			running++
			go func() { // the loop below waits for it
				dialer := net.Dialer{Timeout: hastyConnect}
				nc, err := dialer.DialContext(ctx, "tcp", addr)
				ended <- attempt{nc, err}
			}()
		}
		select {
		case <-tick.C:
			due = true
		case first := <-ended:
			due, running = false, running-1
			if first.err != nil && isSilent(first.err) && ctx.Err() == nil {
				continue
			}
			cancel()
			for ; running > 0; running-- {
				if late := <-ended; late.err == nil {
					late.nc.Close()
				}
			}
			return first.nc, first.err
		}
	}
}

// isSilent reports whether err means that a connection attempt got no answer.
func isSilent(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout() || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
}
