package remote

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A system call that does not wait need not be announced to Go's scheduler. The announcement wakes the runtime's
// watchdog thread where nothing ran before: for a program that is woken for each piece of a stream that is one more
// switch of threads for each. So bulk is read and written by raw calls, of descriptors in non-blocking mode only.

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

// rawFile reads and writes a file or a connection that is in non-blocking mode. Closing that wakes who waits.
type rawFile struct {
	conn syscall.RawConn
	name string // for errors
}

// rawOf returns f as a rawFile.
func rawOf(f syscall.Conn, name string) (rawFile, error) {
	conn, err := f.SyscallConn()
	return rawFile{conn, name}, err
}

// Read implements io.Reader. The error is os.ErrClosed after a Close.
func (f rawFile) Read(p []byte) (int, error) {
	n, err := f.do("read", f.conn.Read, unix.SYS_READ, p)
	if err == nil && n == 0 && len(p) > 0 {
		err = io.EOF
	}
	return n, err
}

// Write implements io.Writer. The error is os.ErrClosed after a Close.
func (f rawFile) Write(p []byte) (total int, err error) {
	for err == nil && total < len(p) {
		var n int
		n, err = f.do("write", f.conn.Write, unix.SYS_WRITE, p[total:])
		total += n
	}
	return total, err
}

// do does the call once, when wait says that it may.
func (f rawFile) do(op string, wait func(func(uintptr) bool) error, call uintptr, p []byte) (n int, err error) {
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
