package proc

import (
	"errors"
	"fmt"

	"github.com/stepmux/stepmux/internal/oserr"
)

// Reasons of a StartError.
var (
	// ErrNotFound: the program does not exist, or the interpreter in its first line does not. A shell returns exit code
	// 127.
	ErrNotFound = errors.New("not found")
	// ErrNotExecutable: the program exists, but this machine or this user cannot execute it. A shell returns exit code
	// 126.
	ErrNotExecutable = errors.New("not executable")
	// ErrTooLarge: an argument or an environment variable exceeds a limit of the kernel (E2BIG), or all of them
	// together do.
	ErrTooLarge = errors.New("arguments and environment too large")
)

// StartError is the error of Start if the command is at fault, not the machine. It wraps Reason, and Err if it is not
// nil.
type StartError struct {
	Program string // Argv[0]
	Reason  error  // ErrNotFound, ErrNotExecutable or ErrTooLarge
	Detail  string // more for the reader; may be empty
	Err     error  // the system call's; may be nil
}

// Error implements error.
func (e *StartError) Error() string {
	text := fmt.Sprintf("start %q: %v", e.Program, e.Reason)
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	return text
}

// Unwrap returns the reason and the cause.
func (e *StartError) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Reason}
	}
	return []error{e.Reason, e.Err}
}

func tooLarge(program, format string, args ...any) error {
	return &StartError{Program: program, Reason: ErrTooLarge, Detail: fmt.Sprintf(format, args...)}
}

// MachineFailed reports whether the machine, and not the command, is at fault for err: its init was killed or could not
// be made, or the kernel ran out of space, memory or another resource. err is an error of starting a command, of
// waiting for it, or of a file that it needs.
func MachineFailed(err error) bool {
	var broken initError
	if errors.As(err, &broken) || errors.Is(err, errInit) {
		return true
	}
	return oserr.Exhausted(err)
}

// initError is the error of an init that could not be made.
type initError struct{ error }

func (e initError) Unwrap() error { return e.error }
