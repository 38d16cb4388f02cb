package pool

import (
	"errors"
	"fmt"
)

var (
	// ErrClosed is wrapped by the errors of a pool that Close or Shutdown has been called on, and is
	// the cause for which such a pool retires its connections.
	ErrClosed = errors.New("pool is closed")
	// ErrIdle is the cause for which a connection is retired after Config.IdleTimeout without leases.
	ErrIdle = errors.New("connection was idle")
	// ErrExpired is the cause for which a connection is retired that has reached Config.MaxAge.
	ErrExpired = errors.New("connection reached its maximum age")

	// errRetired stands in for the cause where Retire was given none.
	errRetired = errors.New("retired")
	// errAbandoned ends a dial that nobody waits for.
	errAbandoned = errors.New("nobody waits for the dial")
)

// DialError says that a key's connection could not be made. All callers that waited for the dial get
// the same one.
type DialError struct {
	// Key names the machine.
	Key Key
	// Attempts is how often Config.Dial was called for this dial; 0 if Retire ended it before.
	Attempts int
	// Permanent says that Config.Permanent held for Err: another dial fails too until something is
	// changed.
	Permanent bool
	// Err is what the last attempt returned, or the cause Retire was given.
	Err error
}

func (e *DialError) Error() string {
	if e.Attempts > 1 {
		return fmt.Sprintf("connect %s: %v (%d attempts)", e.Key, e.Err, e.Attempts)
	}
	return fmt.Sprintf("connect %s: %v", e.Key, e.Err)
}

// Unwrap returns the cause.
func (e *DialError) Unwrap() error { return e.Err }
