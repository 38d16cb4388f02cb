package pipe

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Wakeable returns a duplicate of f, and a function that restores f's blocking mode. Close of the duplicate wakes a
// blocked Read or Write of it if f is a pipe, a socket or a terminal. The caller closes the duplicate and then calls
// restore.
func Wakeable(f *os.File) (dup *os.File, restore func(), err error) {
	if f == nil {
		return nil, nil, errors.New("stdin or stdout is missing")
	}
	rc, err := f.SyscallConn() // not Fd, which may change the mode itself
	if err != nil {
		return nil, nil, fmt.Errorf("use %s: %w", f.Name(), err)
	}
	var (
		fd    int
		flags int
		fail  error
	)
	err = rc.Control(func(old uintptr) {
		if flags, fail = unix.FcntlInt(old, unix.F_GETFL, 0); fail != nil {
			return
		}
		if fd, fail = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 3); fail != nil {
			return
		}
		fail = unix.SetNonblock(fd, true) // before NewFile, which looks at it
	})
	if err == nil {
		err = fail
	}
	if err != nil {
		return nil, nil, fmt.Errorf("duplicate %s: %w", f.Name(), err)
	}
	restore = func() {
		if flags&unix.O_NONBLOCK == 0 {
			_ = rc.Control(func(old uintptr) { _ = unix.SetNonblock(int(old), false) })
		}
	}
	return os.NewFile(uintptr(fd), f.Name()), restore, nil
}

// pipeCapacity is the capacity of a pipe to sshd. With the usual 64 KiB both ends wait for each other all the time. An
// unprivileged user may have at most this much (pipe-max-size, pipe(7)).
const pipeCapacity = 1 << 20

// Widen gives f a larger buffer if f is a pipe. Where the system refuses, copying is only slower.
func Widen(f *os.File) {
	if rc, err := f.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeCapacity) })
	}
}
