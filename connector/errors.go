package connector

import (
	"errors"
	"fmt"

	"github.com/stepmux/stepmux/connector/program"
)

// ErrClosed is returned by calls on a Connector whose Close has been called.
var ErrClosed = errors.New("connector is closed")

// ErrNoTrace says that the step runner cannot make a trace of a job: it is another program, or an older one.
var ErrNoTrace = errors.New("the step runner on the VM makes no traces; install a newer stepmux there")

// ErrGone is for [Config.Reconnect]: the machine or container of the step runner is no longer there, so the build
// is lost.
var ErrGone = errors.New("the step runner's machine or container is gone")

// ServeError says that the build's `steps serve` could not be started, did not come to listen, or ended.
type ServeError = program.ServeError

// RequestError says that the step runner refused the job as wrong: nothing of it has run, and
// nothing will before the job is changed.
type RequestError struct {
	// Message is the step runner's.
	Message string
}

func (e *RequestError) Error() string { return "the job is not valid: " + e.Message }

// bridgeError adds to an error the operation that it ended.
func bridgeError(err error) error { return fmt.Errorf("bridge to the step runner: %w", err) }
