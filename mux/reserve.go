package mux

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/plural"
)

// refusalTimeout is how long a server may refuse a session although we have none open, before the refusal counts as
// its policy. Sessions that were just closed are not free at once.
const refusalTimeout = 5 * time.Second

// Reservation holds sessions on the server that are open and wait for their commands. Reserve takes all n sessions or
// fails. If callers could hold some while they wait for the rest, two builds would deadlock. It is safe for
// concurrent use.
type Reservation struct {
	conn *Conn

	mu   sync.Mutex // guards the following
	idle []*sshChannel
}

// Reserve opens n sessions together. If the server allows no more at the moment, Reserve waits its turn, bounded by
// ctx. It fails with ErrForbidden if the server allows fewer than n although nothing else is open, and panics if n is
// less than 1. The caller calls Release.
func (c *Conn) Reserve(ctx context.Context, n int) (*Reservation, error) {
	return c.reserve(ctx, "Reserve", n, c.openSessions)
}

// TryReserve is Reserve that returns ErrSaturated instead of waiting.
func (c *Conn) TryReserve(ctx context.Context, n int) (*Reservation, error) {
	return c.reserve(ctx, "TryReserve", n, c.tryOpenSessions)
}

func (c *Conn) reserve(ctx context.Context, call string, n int, open opener) (*Reservation, error) {
	if n < 1 {
		panic(fmt.Sprintf("mux: %s of %d sessions", call, n))
	}
	sessions, err := open(ctx, "open session", n)
	if err != nil {
		return nil, err
	}
	return &Reservation{conn: c, idle: sessions}, nil
}

// Start is [Conn.Start] in one of the reserved sessions, or in a new one if all are used up.
func (r *Reservation) Start(ctx context.Context, cmd Command) (*Process, error) {
	_, p, err := r.conn.startSession(ctx, cmd, r.take)
	return p, err
}

// take is the opener that uses reserved sessions, and opens new ones if too few are left.
func (r *Reservation) take(ctx context.Context, op string, n int) ([]*sshChannel, error) {
	r.mu.Lock()
	if len(r.idle) < n {
		r.mu.Unlock()
		return r.conn.openSessions(ctx, op, n)
	}
	defer r.mu.Unlock()
	taken := r.idle[:n]
	r.idle = r.idle[n:]
	return taken, nil
}

// Release closes the sessions that were not used. The others belong to their processes. Idempotent.
func (r *Reservation) Release() {
	r.mu.Lock()
	idle := r.idle
	r.idle = nil
	r.mu.Unlock()
	closeSessions(idle)
}

func closeSessions(all []*sshChannel) {
	for _, s := range all {
		s.Close()
	}
}

// opener opens n sessions together.
type opener func(ctx context.Context, op string, n int) ([]*sshChannel, error)

// openSessions is the opener that retries when the server refuses.
func (c *Conn) openSessions(ctx context.Context, op string, n int) ([]*sshChannel, error) {
	// refusedAlone is when the server began to refuse although we had no session open and no other caller got one.
	var refusedAlone time.Time
	for try := 0; ; try++ {
		if err := c.sessions.acquire(ctx, c.done, n); err != nil {
			if lost := c.ended(op); lost != nil {
				return nil, lost
			}
			return nil, fmt.Errorf("%s: wait for one of the server's sessions: %w", op, err)
		}
		opened, err := c.tryOpen(ctx, op, n)
		if err == nil {
			c.sessions.served()
			return opened, nil
		}
		if !isRefusal(err) {
			closeSessions(opened)
			if errors.Is(err, ErrForbidden) && c.sessions.stat().Peak > 0 {
				err = fmt.Errorf("the server allows one session on each connection, and it has been used: %w", err)
			}
			return nil, err
		}
		c.trace.Refused()
		c.giveUpSpares() // no waiter has asked for the spares if the server allows fewer than SessionLimit
		others := c.sessions.refuse() - len(opened)
		closeSessions(opened)
		switch {
		case others > 0:
			refusedAlone = time.Time{}
		// A server frees a session only some time after its close. So callers that take turns may each be refused
		// because of the caller before.
		case refusedAlone.IsZero(), c.sessions.servedSince(refusedAlone, n):
			refusedAlone = time.Now()
		case time.Since(refusedAlone) > refusalTimeout:
			return nil, fmt.Errorf("%s: %w: the server allows %s on a connection, %d are needed "+
				"(MaxSessions in sshd_config): %w", op, ErrForbidden, plural.Count(len(opened), "session"), n, err)
		}
		if err := c.pause(ctx, op, backoff(try)); err != nil {
			return nil, err
		}
	}
}

// tryOpenSessions is the opener that returns ErrSaturated if the server does not allow n more sessions now.
func (c *Conn) tryOpenSessions(ctx context.Context, op string, n int) ([]*sshChannel, error) {
	if lost := c.ended(op); lost != nil {
		return nil, lost
	}
	if !c.sessions.tryAcquire(n) {
		return nil, ErrSaturated
	}
	opened, err := c.tryOpen(ctx, op, n)
	if err == nil {
		return opened, nil
	}
	if isRefusal(err) {
		c.trace.Refused()
		c.sessions.refuse()
		err = ErrSaturated
	}
	closeSessions(opened)
	return nil, err
}

// tryOpen opens n sessions, for which the caller has taken slots. On an error it returns the sessions that it opened;
// the slots of the others are free again.
func (c *Conn) tryOpen(ctx context.Context, op string, n int) ([]*sshChannel, error) {
	opened := make([]*sshChannel, 0, n)
	for len(opened) < n {
		s, err := c.open(ctx, op, "session", nil, c.sessions)
		if err != nil {
			for range n - len(opened) - 1 {
				c.sessions.closed(false)
			}
			return opened, err
		}
		opened = append(opened, s)
	}
	return opened, nil
}

// pause waits for about d.
func (c *Conn) pause(ctx context.Context, op string, d time.Duration) error {
	timer := time.NewTimer(d/2 + rand.N(d))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-c.done:
		return c.ended(op)
	case <-ctx.Done():
		return fmt.Errorf("%s: wait for one of the server's sessions: %w", op, context.Cause(ctx))
	}
}

// isRefusal reports whether err means that the server allows no further session. OpenSSH reports "connect failed" in
// this and in many other cases, so err must come from opening a session.
func isRefusal(err error) bool {
	refusal := (*ssh.OpenChannelError)(nil)
	return errors.As(err, &refusal) && !errors.Is(err, ErrForbidden)
}
