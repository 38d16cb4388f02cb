package pipe

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Bulk is read and written by raw system calls, on descriptors in non-blocking mode only. Go's scheduler is not told of
// a raw call. Telling it wakes the runtime's watchdog thread if the program was idle, which costs a program that is
// woken for each piece of a stream one more thread switch for each piece.

// ReadFD is read(2) of a descriptor in non-blocking mode.
func ReadFD(fd uintptr, p []byte) (int, error) { return rawIO(unix.SYS_READ, fd, p) }

// rawIO is read(2) or write(2) of a descriptor in non-blocking mode.
func rawIO(call, fd uintptr, p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		n, _, errno := unix.RawSyscall(call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// Raw reads and writes a file or a connection in non-blocking mode, by raw system calls. Closing the file or the
// connection wakes a blocked Read or Write.
type Raw struct {
	conn syscall.RawConn
	name string // for errors
}

// NewRaw returns f as a Raw. The name stands for f in errors.
func NewRaw(f syscall.Conn, name string) (Raw, error) {
	conn, err := f.SyscallConn()
	return Raw{conn, name}, err
}

// Read implements io.Reader. The error is os.ErrClosed after a Close.
func (f Raw) Read(p []byte) (int, error) {
	n, err := f.do("read", f.conn.Read, unix.SYS_READ, p)
	if err == nil && n == 0 && len(p) > 0 {
		err = io.EOF
	}
	return n, err
}

// Write implements io.Writer. The error is os.ErrClosed after a Close.
func (f Raw) Write(p []byte) (total int, err error) {
	for err == nil && total < len(p) {
		var n int
		n, err = f.do("write", f.conn.Write, unix.SYS_WRITE, p[total:])
		total += n
	}
	return total, err
}

// do makes the system call once, as soon as the descriptor is ready for it.
func (f Raw) do(op string, wait func(func(uintptr) bool) error, call uintptr, p []byte) (n int, err error) {
	waitErr := wait(func(fd uintptr) bool {
		n, err = rawIO(call, fd, p)
		return !errors.Is(err, unix.EAGAIN)
	})
	switch {
	case errors.Is(waitErr, os.ErrDeadlineExceeded):
		return 0, waitErr
	case waitErr != nil:
		return 0, os.ErrClosed
	case err != nil:
		return 0, &fs.PathError{Op: op, Path: f.name, Err: err}
	default:
		return n, nil
	}
}
