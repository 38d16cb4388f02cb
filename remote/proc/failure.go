package proc

import (
	"errors"
	"fmt"
	"syscall"
)

// stage is the step in which the init failed.
type stage uint8

const (
	stageInit    stage = iota // setting itself up
	stageOrphan               // the orphan directory
	stageRoom                 // isolating the commands
	stageGuard                // protecting the files of later builds
	stageVisible              // showing a directory that is hidden
	stageDir                  // the working directory
	stagePath                 // finding the program
	stageExec                 // executing it
)

// failure says why the init could not start a command, or itself.
type failure struct {
	at    stage
	errno syscall.Errno
	text  string // of the error
}

func fail(at stage, err error) *failure {
	errno := syscall.EINVAL
	_ = errors.As(err, &errno)
	return &failure{at, errno, err.Error()}
}

// report returns the report of the failure of command id.
func (f *failure) report(id uint32) report {
	return report{Kind: reportFailed, ID: id, At: f.at, Errno: uint32(f.errno), text: f.text}
}

// Error is the error of an init that could not set itself up.
func (f *failure) Error() string { return f.text }

// Unwrap returns the system call's error.
func (f *failure) Unwrap() error { return f.errno }

// error returns the failure as an error of Start for c.
func (f *failure) error(c *Command) error {
	name := c.Argv[0]
	switch f.at {
	case stageDir:
		return fmt.Errorf("start %q: enter working directory %q: %w", name, c.Dir, f.errno)
	case stageVisible:
		return fmt.Errorf("start %q: %w", name, f)
	case stagePath, stageExec:
		if detail, reason := f.reason(); reason != nil {
			return &StartError{Program: name, Reason: reason, Detail: detail, Err: f.errno}
		}
		return fmt.Errorf("start %q: %w", name, f.errno)
	case stageInit, stageOrphan, stageRoom, stageGuard:
	}
	return fmt.Errorf("start %q: set up its init: %w", name, f)
}

// reason returns the Detail and the Reason of a StartError, or nil if the machine is at fault.
func (f *failure) reason() (detail string, reason error) {
	switch f.errno {
	case syscall.ENOENT, syscall.ENOTDIR, syscall.ENAMETOOLONG, syscall.ELOOP:
		if f.at == stagePath {
			return "no directory of its PATH has it", ErrNotFound
		}
		return f.errno.Error() + " (the program, or the interpreter its first line names)", ErrNotFound
	case syscall.EACCES, syscall.EPERM, syscall.ENOEXEC, syscall.ETXTBSY, syscall.EISDIR, syscall.EINVAL:
		return f.errno.Error(), ErrNotExecutable
	case syscall.E2BIG:
		return f.errno.Error(), ErrTooLarge
	default:
		return "", nil
	}
}
