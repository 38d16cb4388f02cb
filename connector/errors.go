package connector

import (
	"errors"
	"fmt"
	"strings"
)

// ErrClosed is returned by calls on a Connector whose Close has been called.
var ErrClosed = errors.New("connector is closed")

// ServeError says that the build's `steps serve` ended, or never came to listen. What the job's
// steps did is unknown.
type ServeError struct {
	// Ready tells whether serve had been listening.
	Ready bool
	// ExitCode is serve's exit status; 128 plus the signal's number when a signal ended it, as a shell
	// counts; -1 when unknown.
	ExitCode int
	// Stderr holds the last lines serve wrote to its standard error. It is foreign text.
	Stderr string
	// Hint says what to change, where we know.
	Hint string
	// Err is the cause.
	Err error
}

func (e *ServeError) Error() string {
	var b strings.Builder
	if e.Ready {
		b.WriteString("the build's steps serve ended")
	} else {
		b.WriteString("steps serve did not start")
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	if e.Hint != "" {
		fmt.Fprintf(&b, " (%s)", e.Hint)
	}
	if e.Stderr != "" {
		fmt.Fprintf(&b, "; it said: %s", e.Stderr)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *ServeError) Unwrap() error { return e.Err }

// RequestError says that the step runner refused the job as wrong: nothing of it has run, and
// nothing will before the job is changed.
type RequestError struct {
	// Message is the step runner's.
	Message string
}

func (e *RequestError) Error() string { return "the job is not valid: " + e.Message }

// LogError says that the build's log could not be written, which ended the build.
type LogError struct{ Err error }

func (e *LogError) Error() string { return "write build log: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *LogError) Unwrap() error { return e.Err }
