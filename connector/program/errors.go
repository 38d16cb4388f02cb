package program

import (
	"fmt"
	"strings"
)

// ServeError says that a build's `steps serve` could not be started, did not come to listen, or ended. The effects of
// the job's steps are unknown.
type ServeError struct {
	// Ready tells whether serve had been listening.
	Ready bool
	// ExitCode is serve's exit status; 128 plus the signal's number when a signal ended it, as a shell
	// counts; -1 when unknown.
	ExitCode int
	// Stderr holds the last lines serve wrote to its standard error. It is foreign text.
	Stderr string
	// Hint names the change that helps, if that is known.
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

// notStarted returns the error of a step runner that did not start, without an exit code.
func notStarted(err error, stderr, hint string) error {
	return &ServeError{ExitCode: -1, Stderr: stderr, Hint: hint, Err: err}
}

// MissingHint is the advice for a runner command that is not on the VM.
func MissingHint(runner []string) string {
	return fmt.Sprintf("is %q installed on the VM, executable, and on the PATH of a non-interactive login? "+
		"install it, name its path as the runner command (stepmux run --runner-command)%s",
		strings.Join(shown(runner), " "), orBootstrap)
}

// orBootstrap ends a hint to install a program.
const orBootstrap = ", or let it be put there (stepmux run --bootstrap)"

// unusableError says that a runner command does not work on a VM, and that another program there may.
type unusableError struct {
	err      error    // for the build, if nothing is done about it
	problem  string   // in a few words, after the program's name
	platform string   // of the VM; empty if it was not asked
	others   []string // of otherRunners that are on the VM
	program  *Program // not nil if builds can still use it by session
}

func (e *unusableError) Error() string { return e.err.Error() }
func (e *unusableError) Unwrap() error { return e.err }
