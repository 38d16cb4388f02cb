package remote

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Stdio is the standard input and output of a command of the VM's end.
//
// In and Out are files because Serve, Proxy and Relay must be woken while they wait on them: they put the open
// files into non-blocking mode while they run and restore the mode before they return, as ssh does. The
// files stay the caller's and are not closed.
type Stdio struct {
	In  *os.File  // nil: no input
	Out *os.File  // Serve never writes to it
	Err io.Writer // the ready marker and notices, one Write each
}

// wakeable returns a duplicate of f on which Close wakes a blocked Read or Write, which holds for pipes,
// sockets and terminals, and a function that restores f's blocking mode. The duplicate is the caller's
// to close, before it restores.
func wakeable(f *os.File) (dup *os.File, restore func(), err error) {
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

// pipeCapacity is how much a pipe to sshd holds. With the usual 64 KiB both ends wait for each other all the
// time; an unprivileged user may have as much as this (pipe-max-size, pipe(7)).
const pipeCapacity = 1 << 20

// widen gives f, if it is a pipe, a larger buffer. Without it all is well, and slower.
func widen(f *os.File) {
	if rc, err := f.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeCapacity) })
	}
}

// notices writes one line per notice to a writer that may be gone. Nothing depends on a notice.
type notices struct {
	mu sync.Mutex // serialises writes
	w  io.Writer
}

func (n *notices) printf(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, _ = io.WriteString(n.w, "step-runner: "+fmt.Sprintf(format, args...)+"\n")
}
