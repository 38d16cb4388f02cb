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

// Bulk is read and written by raw system calls, on descriptors in non-blocking mode only. Go's scheduler does not see a
// raw call. If it did, it would wake the runtime's watchdog thread whenever the program was idle: one more thread
// switch for each piece of a stream.

// ReadFD calls read(2) on a descriptor in non-blocking mode.
func ReadFD(fd uintptr, p []byte) (int, error) { return rawIO(unix.SYS_READ, fd, p) }

// rawIO calls read(2) or write(2) on a descriptor in non-blocking mode.
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

// Move moves n bytes that wait in a socket to the pipe, without a copy (splice(2)). from is the socket's descriptor, in
// non-blocking mode; the bytes must have arrived. It waits while the pipe is full. It returns how many bytes were
// moved: n unless there is an error. The error is errors.ErrUnsupported if the files do not allow it, os.ErrClosed
// after a Close.
func (f Raw) Move(from uintptr, n int) (total int, err error) {
	for err == nil && total < n {
		var moved int
		waitErr := f.conn.Write(func(to uintptr) bool {
			moved, err = splice(from, to, n-total)
			return !errors.Is(err, unix.EAGAIN)
		})
		switch {
		case waitErr != nil:
			err = os.ErrClosed
		case err == nil && moved == 0:
			err = io.ErrUnexpectedEOF
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
			err = errors.ErrUnsupported
		case err != nil:
			err = &fs.PathError{Op: "splice", Path: f.name, Err: err}
		}
		total += moved
	}
	return total, err
}

// splice moves at most n bytes between two descriptors in non-blocking mode. One of them must be a pipe.
func splice(from, to uintptr, n int) (int, error) {
	for {
		moved, _, errno := unix.RawSyscall6(unix.SYS_SPLICE, from, 0, to, 0, uintptr(n), unix.SPLICE_F_NONBLOCK)
		switch errno {
		case 0:
			return int(moved), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// Waiting returns how many bytes wait in a socket to be read, or 0 if that is not known.
func Waiting(fd uintptr) int {
	var n int32
	if _, _, errno := unix.RawSyscall(unix.SYS_IOCTL, fd, unix.SIOCINQ, uintptr(unsafe.Pointer(&n))); errno != 0 {
		return 0
	}
	return int(n)
}
