package mux

import (
	"errors"
	"fmt"

	"github.com/stepmux/stepmux/mux/login"
)

var (
	// ErrClosed is returned by calls on a Conn after Close or Shutdown.
	ErrClosed = errors.New("connection closed by this side")
	// ErrSaturated is returned by TryStart when the server allows no further session now. The connection works; a
	// session becomes free when a process ends.
	ErrSaturated = errors.New("all sessions of the connection are in use")
	// ErrForbidden is wrapped by the errors of channels that the server's policy refuses each time: forwarding
	// switched off, an unknown channel type, no sessions at all.
	ErrForbidden = errors.New("forbidden by the server")
)

// ConnError reports that the connection failed during an operation. Everything that was in flight on the connection
// fails with it, and whether the other end completed it is unknown.
type ConnError struct {
	// Op is the operation that met the failure: "read", "write", "keepalive", or a later operation on the lost
	// connection.
	Op string
	// Addr is the server's address.
	Addr string
	// Err is the cause. For a later operation on the lost connection, it is the ConnError that ended it.
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

// DialError reports the stage at which a connection could not be made, and the machine and account it was for.
type DialError struct {
	// Stage is "prepare" (host keys or credentials could not be asked for), "connect" (TCP, or what
	// Config.DialNet does), "handshake" (not SSH, no common algorithm), "host key" or "login".
	Stage string
	// Addr and User name the machine and the account.
	Addr, User string
	// Hint is the change to make. It may be empty.
	Hint string
	// Err is the cause.
	Err error
}

func (e *DialError) Error() string {
	s := fmt.Sprintf("dial %s@%s: %s: ", e.User, e.Addr, e.Stage)
	switch cause := e.Err.Error(); {
	case e.Hint == "":
		return s + cause
	case len(cause) > longCause:
		return s + e.Hint + ": " + cause
	default:
		return s + cause + " (" + e.Hint + ")"
	}
}

// longCause is the length of a cause, in bytes, behind which a hint would be overlooked.
const longCause = 200

// Unwrap returns the cause.
func (e *DialError) Unwrap() error { return e.Err }

// Permanent reports whether another try with the same configuration would fail too: the login was refused, the host
// key is not the expected one, here or at a jump host, or a jump host forbids the connection. Do not retry then:
// servers ban addresses that keep offering wrong credentials.
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
