package relay

import (
	"errors"
	"fmt"
)

// Error says that the relay failed under an operation, and its carrier did not. Everything that went through the relay
// fails with it. The relay's processes have been ended, or are being ended.
type Error struct {
	// Op is the operation that found it: "start" if the relay did not come up, "keepalive", "protocol", or the
	// operation that met an ended relay.
	Op string
	// Stderr holds the last lines that the relay, or another program in its place, wrote to its standard error. It
	// is foreign text.
	Stderr string
	// ExitCode is the program's exit status if it is known and not 0, as a shell counts: 127 if there was no such
	// program.
	ExitCode int
	// Version is the version of the protocol that the relay speaks, if that is the reason.
	Version int
	// Err is the cause. In an operation that met an ended relay it is the Error that ended it.
	Err error
}

func (e *Error) Error() string {
	if first := (*Error)(nil); errors.As(e.Err, &first) {
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
func (e *Error) Unwrap() error { return e.Err }

// RefusedError says that a relay, which lives on, refused one request.
type RefusedError struct {
	// Op is the request.
	Op string
	// Reason is why it was refused.
	Reason RefusalReason
	// Text is the relay's explanation. It is foreign text.
	Text string
}

// RefusalReason is why a relay refused a request.
type RefusalReason string

// The reasons.
const (
	RefusedFailed    RefusalReason = "failed"     // only the text tells
	RefusedInvalid   RefusalReason = "invalid"    // the relay does not understand the request
	RefusedForbidden RefusalReason = "forbidden"  // the socket does not belong to one of our user's builds
	RefusedNotFound  RefusalReason = "not found"  // no such program, directory or socket
	RefusedNotReady  RefusalReason = "not ready"  // the process ended before it listened
	RefusedBusy      RefusalReason = "busy"       // the relay has reached one of its limits
	RefusedClosing   RefusalReason = "is closing" // the relay is about to end
)

func (e *RefusedError) Error() string { return fmt.Sprintf("%s: relay: %s", e.Op, e.Text) }
