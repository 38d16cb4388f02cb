package program

import (
	"fmt"
	"strings"
)

// ServeError reports that a build's `steps serve` could not be started, did not listen in time, or ended. The effects
// of the job's steps are unknown.
type ServeError struct {
	// Ready is true if serve had been listening.
	Ready bool
	// ExitCode is serve's exit status as a shell reports it: 128 plus the signal's number if a signal ended it, -1 if
	// unknown.
	ExitCode int
	// Stderr holds the last lines that serve wrote to its standard error. It is untrusted text.
	Stderr string
	// Hint is the change to make, if it is known.
	Hint string
	// Err is the cause.
	Err error
}

func (e *ServeError) Error() string {
	text := "steps serve did not start: "
	if e.Ready {
		text = "the build's steps serve ended: "
	}
	text += fmt.Sprint(e.Err)
	if e.Hint != "" {
		text += " (" + e.Hint + ")"
	}
	if e.Stderr != "" {
		text += "; it said: " + e.Stderr
	}
	return text
}

// Unwrap returns the cause.
func (e *ServeError) Unwrap() error { return e.Err }

// notStarted returns the error of a step runner that did not start and has no exit code.
func notStarted(err error, stderr, hint string) error {
	return &ServeError{ExitCode: -1, Stderr: stderr, Hint: hint, Err: err}
}

// MissingHint is the advice for a runner command that is not on the VM.
func MissingHint(runner []string) string {
	return fmt.Sprintf("is %q installed on the VM, executable, and on the PATH of a non-interactive login? "+
		"install it, name its path as the runner command (stepmux run --runner-command)%s",
		strings.Join(shown(runner), " "), orBootstrap)
}

// orBootstrap is the end of a hint to install a program.
const orBootstrap = ", or let it be put there (stepmux run --bootstrap)"

// unusableError reports that a runner command does not work on a VM. Another program there may work.
type unusableError struct {
	err      error    // the build's error if no replacement is found
	problem  string   // a few words that follow the program's name
	platform string   // of the VM; empty if it was not inspected
	others   []string // those of otherRunners that are on the VM
	program  *Program // not nil if builds can still use it by session
}

func (e *unusableError) Error() string { return e.err.Error() }
func (e *unusableError) Unwrap() error { return e.err }
