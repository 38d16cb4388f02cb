package connector

import (
	"errors"
	"fmt"

	"github.com/stepmux/stepmux/connector/program"
)

// ErrClosed is returned by calls on a Connector after Close.
var ErrClosed = errors.New("connector is closed")

// ErrNoTrace reports that the step runner cannot make a trace of a job: it is another program, or too old.
var ErrNoTrace = errors.New("the step runner on the VM makes no traces; install a newer stepmux there")

// ErrGone is returned by [Config.Reconnect] if the machine or container of the step runner no longer exists. The
// build is then lost.
var ErrGone = errors.New("the step runner's machine or container is gone")

// ErrUndelivered is, for [errors.Is], an error of Execute if the step runner did not get the job: nothing of it has
// run, for sure.
var ErrUndelivered = errors.New("the step runner did not get the job")

// ServeError reports that the build's `steps serve` could not be started, did not listen in time, or ended.
type ServeError = program.ServeError

// RequestError reports that the step runner refused the job as invalid. Nothing of it has run, and a retry does not
// help until the job is changed.
type RequestError struct {
	// Message is the step runner's explanation.
	Message string
}

func (e *RequestError) Error() string { return "the job is not valid: " + e.Message }

// undeliveredError is an error that is ErrUndelivered.
type undeliveredError struct{ error }

func (e undeliveredError) Unwrap() error { return e.error }

func (e undeliveredError) Is(target error) bool { return target == ErrUndelivered }

// bridgeError adds the operation to an error.
func bridgeError(err error) error { return fmt.Errorf("bridge to the step runner: %w", err) }
