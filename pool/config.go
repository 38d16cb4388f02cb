package pool

import (
	"context"
	"errors"
	"time"
)

const (
	defaultDialTimeout  = 30 * time.Second
	defaultDialAttempts = 3
	defaultRetryBase    = 500 * time.Millisecond
	defaultRetryMax     = 30 * time.Second
	defaultMaxDials     = 32
	defaultServerDials  = 8
	defaultIdleTimeout  = 5 * time.Minute
)

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
	// by itself, Close frees what it holds and leaves Err as it is. The pool calls it exactly once.
	Close() error
}

// Config says how a Pool dials and how long its connections serve.
type Config[C Conn] struct {
	// Dial connects to a machine. Required. Its ctx has the values of the first caller's, but not its
	// end: it is cancelled when the dial is no longer wanted and once Dial has returned, so it must not
	// govern the connection. Dial returns soon after its ctx ended. It is never called twice at once
	// for one key.
	Dial func(ctx context.Context, key Key) (C, error)
	// DialTimeout bounds a dial from its first attempt to its last, pauses included. If zero, 30s.
	DialTimeout time.Duration
	// DialAttempts is how often one dial calls Dial while that fails and its callers still wait. If
	// zero, 3.
	DialAttempts int
	// Permanent reports errors of Dial that trying again does not cure (a refused login). They end the
	// dial at once. If nil, it reports errors that are, or wrap, one with a method Permanent() bool
	// that returns true.
	Permanent func(error) bool
	// RetryBase and RetryMax pace the attempts to connect to one key, within a dial and from one dial
	// to the next. After n failures in a row the next attempt begins no sooner than RetryBase doubled
	// n-1 times, at most RetryMax; up to half of that is taken off at random. After a permanent error
	// the pause is the whole of RetryMax, because servers ban an address that keeps failing to log in;
	// Acquire fails at once meanwhile.
	// If zero, 500ms and 30s. A RetryMax below RetryBase counts as RetryBase.
	RetryBase, RetryMax time.Duration
	// MaxDials bounds the calls of Dial under way at once, over all keys. If zero, 32.
	MaxDials int
	// Server names the server that the dials of a key log in at, where several keys may have the same one. If
	// nil, each has one of its own. It is called without locks.
	Server func(Key) string
	// MaxServerDials bounds the calls of Dial under way at once at one server: sshd refuses some of those beyond
	// the tenth that has not logged in yet (MaxStartups in sshd_config). If zero, 8.
	MaxServerDials int
	// DialSpacing is the least time from the start of one call of Dial to the start of the next, over
	// all keys: what a jump host that limits its logins asks for. If zero, none.
	DialSpacing time.Duration
	// IdleTimeout is how long a connection without leases is kept. If zero, 5m. If negative, for ever.
	IdleTimeout time.Duration
	// MaxAge is how long a connection takes new leases. What is in flight when it expires goes on; the
	// connection is closed with its last lease. Up to a tenth is taken off at random for each
	// connection, so that a fleet dialed at once is not dialed at once again. If zero, for ever.
	MaxAge time.Duration
	// Trace is told what happens. If nil, nobody is. New copies it.
	Trace *Trace
}

// checked returns the configuration with its defaults filled in. It panics on misuse.
func (c Config[C]) checked() Config[C] {
	if c.Dial == nil {
		panic("pool: Dial is nil")
	}
	if c.DialTimeout < 0 || c.DialAttempts < 0 || c.RetryBase < 0 || c.RetryMax < 0 ||
		c.MaxDials < 0 || c.MaxServerDials < 0 || c.DialSpacing < 0 || c.MaxAge < 0 {
		panic("pool: negative limit in Config")
	}
	orDefault(&c.DialTimeout, defaultDialTimeout)
	orDefault(&c.DialAttempts, defaultDialAttempts)
	orDefault(&c.RetryBase, defaultRetryBase)
	orDefault(&c.RetryMax, defaultRetryMax)
	orDefault(&c.MaxDials, defaultMaxDials)
	orDefault(&c.MaxServerDials, defaultServerDials)
	orDefault(&c.IdleTimeout, defaultIdleTimeout)
	c.RetryMax = max(c.RetryMax, c.RetryBase)
	if c.Permanent == nil {
		c.Permanent = saysPermanent
	}
	trace := Trace{}
	if c.Trace != nil {
		trace = *c.Trace
	}
	c.Trace = &trace
	return c
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func saysPermanent(err error) bool {
	e, ok := errors.AsType[interface {
		error
		Permanent() bool
	}](err)
	return ok && e.Permanent()
}
