package pool

import (
	"cmp"
	"context"
	"time"
)

const defaultIdleTimeout = 5 * time.Minute

// Key names a machine, by an identity that no other machine ever has (an instance id): never by an
// address, which the next machine may be given.
type Key string

// Conn is a connection that many may use at once.
type Conn interface {
	// Done returns a channel, always the same, that is closed once Err is set: when the connection has
	// ended, for whatever reason.
	Done() <-chan struct{}
	// Err returns nil while the connection lives, then why it ended.
	Err() error
	// Close ends the connection, closing Done without waiting for the peer. After the connection ended
	// by itself, Close frees its resources and leaves Err as it is. The pool calls it exactly once.
	Close() error
}

// Config says how a Pool dials and how long its connections serve.
type Config[C Conn] struct {
	// Dial connects to a machine. Required. Its ctx has the values of the first caller's ctx but not its end: it is
	// cancelled when no caller wants the dial any more, and once Dial has returned, so it must not govern the
	// connection. Dial bounds its own time, and returns soon after its ctx has ended. It is never called twice at
	// once for one key. See also Standby.
	Dial func(ctx context.Context, key Key) (C, error)
	// IdleTimeout is how long a connection without leases is kept. If zero, 5m. If negative, for ever.
	IdleTimeout time.Duration
	// MaxAge is how long a connection takes new leases. It is then closed with its last lease. Up to a tenth is
	// subtracted at random for each connection, so that a fleet that was dialed at once is not redialed at once. If
	// zero, for ever.
	MaxAge time.Duration
	// Retired, if not nil, is called once for each connection that has left service. cause is ErrIdle,
	// ErrExpired, ErrClosed, the argument of Retire, or the error with which the connection died. Retired
	// is called with no lock held, from many goroutines at once. It returns soon, and may call the pool,
	// but for Acquire, Close and Shutdown, which could wait for the very goroutine that calls it.
	Retired func(key Key, cause error)
}

// checked returns the configuration with its defaults filled in. It panics on misuse.
func (c Config[C]) checked() Config[C] {
	if c.Dial == nil {
		panic("pool: Dial is nil")
	}
	if c.MaxAge < 0 {
		panic("pool: negative limit in Config")
	}
	c.IdleTimeout = cmp.Or(c.IdleTimeout, defaultIdleTimeout)
	if c.Retired == nil {
		c.Retired = func(Key, error) {}
	}
	return c
}
