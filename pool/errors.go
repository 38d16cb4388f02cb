package pool

import "errors"

var (
	// ErrClosed is wrapped by the errors of a pool after Close or Shutdown. It is also the cause for which such a
	// pool retires its connections.
	ErrClosed = errors.New("pool is closed")
	// ErrIdle is the cause for which a connection is retired after Config.IdleTimeout without leases.
	ErrIdle = errors.New("connection was idle")
	// ErrExpired is the cause for which a connection is retired that has reached Config.MaxAge.
	ErrExpired = errors.New("connection reached its maximum age")

	// errRetired is the cause if the argument of Retire is nil.
	errRetired = errors.New("retired")
	// errAbandoned ends a dial that has no waiters left.
	errAbandoned = errors.New("no caller waits for the dial")
)
