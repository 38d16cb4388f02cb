package relay

import (
	"errors"
	"fmt"

	"github.com/stepmux/stepmux/internal/wire"
)

// ErrOtherProgram is wrapped by the [Error] of a relay that did not start because another program ran in its place and
// read its input. The login does not run the commands that it is given.
var ErrOtherProgram = wire.ErrEcho

// Error reports that the relay failed during an operation, although its carrier works. Everything that went through
// the relay fails with it. The relay's processes have been ended, or are being ended.
type Error struct {
	// Op is the operation that met the failure: "start" if the relay did not come up, "keepalive", "protocol", or a
	// later operation on the ended relay.
	Op string
	// Stderr holds the last lines that the relay, or another program in its place, wrote to its standard error. It is
	// untrusted text.
	Stderr string
	// ExitCode is the program's exit status as a shell reports it, such as 127 if there is no such program. It is 0
	// if unknown.
	ExitCode int
	// Version is the protocol version that the relay speaks, if that is the reason for the failure.
	Version int
	// Err is the cause. For a later operation on the ended relay, it is the Error that ended it.
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

// RefusedError reports that a relay refused one request. The relay itself works.
type RefusedError struct {
	// Op is the refused request.
	Op string
	// Reason classifies the refusal.
	Reason RefusalReason
	// Text is the relay's explanation. It is untrusted text.
	Text string
}

// RefusalReason is the reason for which a relay refused a request.
type RefusalReason string

// The reasons for a refusal.
const (
	RefusedFailed    RefusalReason = "failed"     // any other reason, which Text gives
	RefusedInvalid   RefusalReason = "invalid"    // the relay does not understand the request
	RefusedForbidden RefusalReason = "forbidden"  // the socket does not belong to a build of this login user
	RefusedNotFound  RefusalReason = "not found"  // no such program, directory or socket
	RefusedNotReady  RefusalReason = "not ready"  // the process ended before it listened
	RefusedBusy      RefusalReason = "busy"       // the relay has reached one of its limits
	RefusedClosing   RefusalReason = "is closing" // the relay is about to end
)

func (e *RefusedError) Error() string { return fmt.Sprintf("%s: relay: %s", e.Op, e.Text) }
