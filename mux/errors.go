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

// RelayError says that the relay failed under an operation, on a connection that lives. Everything that
// went through it has this fate; its processes have been ended, or are being. The next call of Conn.Relay
// starts another.
type RelayError struct {
	// Op says who found out: "start" where it did not come up, "keepalive", "protocol", or the operation
	// that met a dead relay.
	Op string
	// Stderr holds the last lines the relay, or what was started instead, wrote to its standard error. It
	// is foreign text.
	Stderr string
	// ExitCode is its exit status if it is known to have ended with one that is not 0, as a shell counts:
	// 127 if there was no such program.
	ExitCode int
	// Version is the version of the protocol that the relay speaks, if that is the trouble.
	Version int
	// Err is the cause; in an operation that met a dead relay, the RelayError that ended it.
	Err error
}

func (e *RelayError) Error() string {
	if first := (*RelayError)(nil); errors.As(e.Err, &first) {
		return e.Op + ": " + first.Error()
	}
	s := fmt.Sprintf("the relay on the VM failed (%s)", e.Op)
	if e.Op == "start" {
		s = "the relay on the VM did not start"
	}
	s = fmt.Sprintf("%s: %v", s, e.Err)
	if e.Stderr != "" {
		s += "; it said: " + e.Stderr
	}
	return s
}

// Unwrap returns the cause.
func (e *RelayError) Unwrap() error { return e.Err }

// RefusedError says that a relay, which is well, refused one request.
type RefusedError struct {
	// Op is the request.
	Op string
	// Reason is its kind.
	Reason RefusalReason
	// Text is the relay's. It is foreign text.
	Text string
}

// RefusalReason is why a relay refused a request.
type RefusalReason string

// The reasons.
const (
	RefusedFailed    RefusalReason = "failed"     // only the text tells
	RefusedInvalid   RefusalReason = "invalid"    // the request makes no sense to the relay
	RefusedForbidden RefusalReason = "forbidden"  // the socket is not one of our user's builds
	RefusedNotFound  RefusalReason = "not found"  // no such program, directory or socket
	RefusedNotReady  RefusalReason = "not ready"  // the process did not come to listen
	RefusedBusy      RefusalReason = "busy"       // the relay has as much to do as it takes
	RefusedClosing   RefusalReason = "is closing" // the relay is about to end
)

func (e *RefusedError) Error() string { return fmt.Sprintf("%s: relay: %s", e.Op, e.Text) }

// ExitError says that a remote process ended and not well. Exactly one of its facts holds: a
// non-zero Status, or a Signal, or neither when the server closed the channel without a word.
type ExitError struct {
	// Status is the exit status, 1 to 255 from a POSIX system.
	Status int
	// Signal is the signal's name without "SIG" (RFC 4254, section 6.10), empty if none.
	Signal string
	// Message is what the server added to a signal; it is foreign text.
	Message string
}

func (e *ExitError) Error() string {
	switch {
	case e.Signal != "":
		return "remote process ended by signal " + e.Signal
	case e.Status != 0:
		return fmt.Sprintf("remote process: exit status %d", e.Status)
	default:
		return "remote process ended without an exit status"
	}
}

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
