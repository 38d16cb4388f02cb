package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
)

// Why a command itself cannot be started, as Reason of a StartError.
var (
	// ErrNotFound: there is no such program, or not the interpreter its first line names. A shell
	// gives exit code 127.
	ErrNotFound = errors.New("not found")
	// ErrNotExecutable: the program is there and is nothing this machine and user can execute. A shell
	// gives exit code 126.
	ErrNotExecutable = errors.New("not executable")
	// ErrTooLarge: an argument, an environment variable, or all of them together exceed what the
	// kernel takes (E2BIG).
	ErrTooLarge = errors.New("arguments and environment too large")
)

// StartError is the error of Start when the fault is the command's, not the machine's. It wraps Reason,
// and Err if there is one.
type StartError struct {
	Program string // Argv[0]
	Reason  error  // ErrNotFound, ErrNotExecutable or ErrTooLarge
	Detail  string // what exactly, for a reader; may be empty
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

// MachineFailed reports whether err, of starting a command, of waiting for it or of a file it needs, says that this
// machine failed and not the command: its shim was killed, or there was no more room, memory or whatever else the
// kernel gives.
func MachineFailed(err error) bool {
	if errors.Is(err, errShim) {
		return true
	}
	errno, ok := errors.AsType[syscall.Errno](err)
	return ok && slices.Contains(exhausted, errno)
}

// exhausted are what the kernel says when it is at its limits, or what is below it fails.
var exhausted = []syscall.Errno{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN, syscall.ENOBUFS,
	syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO,
}

// bare strips the call and the path of an *fs.PathError or *os.SyscallError: our messages name what matters.
func bare(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	if call, ok := errors.AsType[*os.SyscallError](err); ok {
		return call.Err
	}
	return err
}
