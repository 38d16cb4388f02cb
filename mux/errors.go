package mux

import (
	"errors"
	"fmt"

	"github.com/stepmux/stepmux/mux/login"
)

var (
	// ErrClosed is returned by calls on a Conn that Close or Shutdown has been called on.
	ErrClosed = errors.New("connection closed by this side")
	// ErrSaturated is returned by TryStart when the server allows no further session now. It is a
	// state: the connection is well, and a slot comes free when a process ends.
	ErrSaturated = errors.New("all sessions of the connection are in use")
	// ErrForbidden is wrapped by the errors of channels that the server's policy refuses, however
	// often they are asked for: forwarding switched off, an unknown channel type, no sessions at all.
	ErrForbidden = errors.New("forbidden by the server")
)

// ConnError says that the connection failed under an operation. Everything that was in flight on
// the connection has this fate; how the remote end fared is unknown.
type ConnError struct {
	// Op says who found out: "read", "write", "keepalive", or the operation that met a dead
	// connection.
	Op string
	// Addr is the server's address.
	Addr string
	// Err is the cause; in an operation that met a dead connection, the ConnError that ended it.
	Err error
}

func (e *ConnError) Error() string {
	if first := (*ConnError)(nil); errors.As(e.Err, &first) {
		return e.Op + ": " + first.Error()
	}
	return fmt.Sprintf("connection to %s lost (%s): %v", e.Addr, e.Op, e.Err)
}

// Unwrap returns the cause.
func (e *ConnError) Unwrap() error { return e.Err }

// DialError says at which stage a connection could not be made, and to whom.
type DialError struct {
	// Stage is "prepare" (host keys or credentials could not be asked for), "connect" (TCP, or what
	// Config.DialNet does), "handshake" (not SSH, no common algorithm), "host key" or "login".
	Stage string
	// Addr and User name the machine and the account.
	Addr, User string
	// Hint says what to change, where we know.
	Hint string
	// Err is the cause.
	Err error
}

func (e *DialError) Error() string {
	s := fmt.Sprintf("dial %s@%s: %s: %v", e.User, e.Addr, e.Stage, e.Err)
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Unwrap returns the cause.
func (e *DialError) Unwrap() error { return e.Err }

// Permanent reports whether another try with the same configuration must fail too: a refused login
// or an unexpected host key, here or on the way here, or a jump host that forbids the way. (Servers ban addresses that keep offering wrong
// credentials.)
func (e *DialError) Permanent() bool {
	switch e.Stage {
	case "login":
		return true
	case "host key":
		_, unknown := errors.AsType[*login.LookupError](e.Err)
		return !unknown
	case "connect":
		inner, ok := errors.AsType[*DialError](e.Err)
		return ok && inner.Permanent() || errors.Is(e.Err, ErrForbidden)
	}
	return false
}
