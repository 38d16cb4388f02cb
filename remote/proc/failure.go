package proc

import (
	"errors"
	"fmt"
	"syscall"
)

// stage is the step at which the shim failed to start a command.
type stage uint8

const (
	stageShim   stage = iota // setting itself up
	stageOrphan              // the orphan directory
	stageDir                 // the working directory
	stagePath                // finding the program
	stageExec                // executing it
)

// failure is the reason for which the shim could not start a command.
type failure struct {
	at    stage
	errno syscall.Errno
}

func fail(at stage, err error) *failure {
	errno := syscall.EINVAL
	_ = errors.As(err, &errno)
	return &failure{at, errno}
}

// error returns the error of Start for c.
func (f *failure) error(c *Command) error {
	name := c.Argv[0]
	switch f.at {
	case stageDir:
		return fmt.Errorf("start %q: enter working directory %q: %w", name, c.Dir, f.errno)
	case stageOrphan:
		return fmt.Errorf("start %q: open orphan directory %q: %w", name, c.OrphanDir, f.errno)
	case stagePath, stageExec:
		if detail, reason := f.reason(); reason != nil {
			return &StartError{Program: name, Reason: reason, Detail: detail, Err: f.errno}
		}
		return fmt.Errorf("start %q: %w", name, f.errno)
	case stageShim:
	}
	return fmt.Errorf("start %q: set up its shim: %w", name, f.errno)
}

// reason returns the Reason and Detail of a StartError, or nil if the machine is at fault.
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
