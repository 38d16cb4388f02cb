package mux

import (
	"errors"
	"fmt"

	"github.com/stepmux/stepmux/mux/login"
)

var (
	// ErrClosed is returned by calls on a Conn that Close or Shutdown has been called on.
	ErrClosed = errors.New("connection closed by this side")
	// ErrSaturated is returned by TryStart when the server allows no further session now. The connection is well,
	// and a session becomes free when a process ends.
	ErrSaturated = errors.New("all sessions of the connection are in use")
	// ErrForbidden is wrapped by the errors of channels that the server's policy refuses each time: forwarding
	// switched off, an unknown channel type, no sessions at all.
	ErrForbidden = errors.New("forbidden by the server")
)

// ConnError says that the connection failed under an operation. All that was in flight on the connection fails with it.
// It is unknown how the remote end fared.
type ConnError struct {
	// Op is the operation that found it: "read", "write", "keepalive", or an operation on a connection that had
	// ended before.
	Op string
	// Addr is the server's address.
	Addr string
	// Err is the cause. In an operation on a connection that had ended before, it is the ConnError that ended it.
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

// DialError says at which stage a connection could not be made, and to which account of which machine.
type DialError struct {
	// Stage is "prepare" (host keys or credentials could not be asked for), "connect" (TCP, or what
	// Config.DialNet does), "handshake" (not SSH, no common algorithm), "host key" or "login".
	Stage string
	// Addr and User name the machine and the account.
	Addr, User string
	// Hint says how to mend it, if we know.
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

// Permanent reports whether another try with the same configuration must fail too: a refused login or an unexpected
// host key, here or at a jump host, or a jump host that forbids the connection. (Servers ban addresses that keep
// offering wrong credentials.)
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
