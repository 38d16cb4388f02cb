// Package oserr makes errors of the operating system readable, for messages that name the path themselves: [Bare]
// removes the path, [Hint] adds a remedy, [With] adds the action that failed.
package oserr

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Bare removes the system call and the path from err, for a message that names the whole path.
func Bare(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	if link, ok := errors.AsType[*os.LinkError](err); ok {
		return link.Err
	}
	if call, ok := err.(*os.SyscallError); ok { //nolint:errorlint // the outermost error only
		return call.Err
	}
	return err
}

// With returns err with text and ": " before it. The init of a build makes its errors so: it has no package fmt, which
// would be a tenth of it.
func With(text string, err error) error { return &withText{text, err} }

type withText struct {
	text string
	err  error
}

func (e *withText) Error() string { return e.text + ": " + e.err.Error() }

func (e *withText) Unwrap() error { return e.err }

// NoSpace reports whether err says that a file system has no free space or no free inodes, or that a quota is reached.
func NoSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

// Exhausted reports whether err says that the kernel has reached a limit, or that hardware fails.
func Exhausted(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno) && slices.Contains(exhausted, errno)
}

var exhausted = []syscall.Errno{
	unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.ENOBUFS, unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EIO,
}

// Hint adds a remedy for the operator of the machine to err, an error of creating a file in dir, or a pipe. If no
// remedy is known, it adds nothing. It returns nil for nil.
func Hint(err error, dir string) error {
	switch {
	case err == nil:
		return nil
	case NoSpace(err):
		return fmt.Errorf("%w (free space or inodes on the file system of %s)", err, dir)
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w (make %s writable, or use another temporary directory)", err, dir)
	case errors.Is(err, unix.EMFILE):
		return fmt.Errorf("%w (raise ulimit -n, the limit of open files)", err)
	case errors.Is(err, unix.ENFILE):
		return fmt.Errorf("%w (raise fs.file-max, the machine's limit of open files)", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w (user %d must be able to write in %s)", err, os.Geteuid(), dir)
	}
	return err
}
