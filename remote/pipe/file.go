package pipe

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// File is a duplicate of a stdin or stdout, in non-blocking mode. Close wakes a blocked Read or Write if the file is a
// pipe, a socket or a terminal; on other files a read never blocks.
type File struct {
	Raw
	dup   *os.File
	close func()
}

// Open returns f as a File, which the caller closes. f stays open. If two files may be the same socket, close the one
// that was opened first last: it restores the mode of both.
func Open(f *os.File) (*File, error) {
	if f == nil {
		return nil, errors.New("stdin or stdout is missing")
	}
	rc, err := f.SyscallConn() // not Fd, which may change the mode itself
	if err != nil {
		return nil, fmt.Errorf("use %s: %w", f.Name(), err)
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
		fail = unix.SetNonblock(fd, true) // before NewFile, which checks the mode
	})
	if err == nil {
		err = fail
	}
	if err != nil {
		return nil, fmt.Errorf("duplicate %s: %w", f.Name(), err)
	}
	dup := os.NewFile(uintptr(fd), f.Name())
	raw, _ := NewRaw(dup, f.Name()) // fails only for a closed file
	return &File{raw, dup, sync.OnceFunc(func() {
		dup.Close()
		if flags&unix.O_NONBLOCK == 0 {
			_ = rc.Control(func(old uintptr) { _ = unix.SetNonblock(int(old), false) })
		}
	})}, nil
}

// Close closes the duplicate, waits until no Read or Write uses it, and restores f's blocking mode. It is idempotent.
func (f *File) Close() { f.close() }

// SetReadDeadline ends a blocked Read, and later ones, at t. A file on which no read blocks ignores it.
func (f *File) SetReadDeadline(t time.Time) { _ = f.dup.SetReadDeadline(t) }

// pipeCapacity is the capacity of a pipe to sshd. With the usual 64 KiB both ends often wait for each other. An
// unprivileged user may have at most this much (pipe-max-size, pipe(7)).
const pipeCapacity = 1 << 20

// Widen gives f a larger buffer if f is a pipe, and reports whether it is one. If the system refuses, copying is only
// slower.
func (f *File) Widen() (isPipe bool) {
	_ = f.conn.Control(func(fd uintptr) {
		_, err := unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeCapacity)
		isPipe = !errors.Is(err, unix.EBADF) // all other files return EBADF
	})
	return isPipe
}
