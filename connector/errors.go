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

// MachineError says that the VM could not run a script or a command, or not to its end: the fault is the
// machine's or the configuration's, not the script's.
type MachineError struct {
	// Stage says what went wrong: "shell" (there is none of that name), "tmp" (no place for the script),
	// "tool" (a program that we need is missing), "truncated" (the script did not arrive whole), "machine",
	// or "guard" (what was to run it ended without a word).
	Stage string
	// Text is what the VM said. It is foreign text.
	Text string
	// Hint says what to change, where we know.
	Hint string
	// Err is the cause, nil if there is no other.
	Err error
}

func (e *MachineError) Error() string {
	var b strings.Builder
	b.WriteString("the VM could not run the script")
	if e.Stage == stageGuard {
		b.WriteString(", or not to its end")
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	if e.Text != "" {
		fmt.Fprintf(&b, ": %s", e.Text)
	}
	if e.Hint != "" {
		fmt.Fprintf(&b, " (%s)", e.Hint)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *MachineError) Unwrap() error { return e.Err }

const stageGuard = "guard"

// machineHint says what to do about a failure at a stage.
func machineHint(stage string) string {
	switch stage {
	case "shell":
		return "install the shell on the VM, or configure another"
	case "tmp":
		return "make room in the VM's directory for temporary files, TMPDIR or /tmp, and let the login write there"
	case "tool":
		return "install it on the VM, for example with coreutils, util-linux and grep; or install stepmux there, which needs no other program"
	case "truncated":
		return "the connection broke while it was sent; try again"
	case stageGuard:
		return "was it killed, by lack of memory perhaps? Does the login run the command it is given?"
	default:
		return ""
	}
}
