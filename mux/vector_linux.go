package mux

import (
	"errors"
	"net"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// vector reads into two buffers, or writes two, with one system call on a TCP connection. The call never waits, and
// bypasses Go's scheduler: if the scheduler knew of a call that copies for 20 µs, it would give its processor to
// another thread. One goroutine at a time may use it.
type vector struct {
	nc     net.Conn
	name   string // of the system call, for errors
	op     string
	number uintptr
	wait   func(func(fd uintptr) bool) error // of nc's syscall.RawConn: calls the function when nc is ready
	call   func(fd uintptr) bool

	parts [2]unix.Iovec
	n     int
	errno syscall.Errno
}

// vectors returns the reader and the writer of nc, nil if it is not TCP.
func vectors(nc net.Conn) (read, write *vector) {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return nil, nil
	}
	rc, err := tcp.SyscallConn()
	if err != nil {
		return nil, nil
	}
	read = newVector(nc, "read", "readv", unix.SYS_READV, rc.Read)
	return read, newVector(nc, "write", "writev", unix.SYS_WRITEV, rc.Write)
}

func newVector(nc net.Conn, op, name string, number uintptr, wait func(func(uintptr) bool) error) *vector {
	v := &vector{nc: nc, op: op, name: name, number: number, wait: wait}
	v.call = v.try // made once: a method value costs an allocation
	return v
}

// try makes the system call, and returns false if the connection is not ready for it.
func (v *vector) try(fd uintptr) bool {
	for {
		n, _, errno := unix.RawSyscall(v.number, fd, uintptr(unsafe.Pointer(&v.parts[0])), uintptr(len(v.parts)))
		switch errno {
		case unix.EINTR:
		case unix.EAGAIN:
			return false
		default:
			v.n, v.errno = int(n), errno
			return true
		}
	}
}

// do makes the system call once, as soon as the connection is ready. n is 0 on an error and at the end of the input.
func (v *vector) do(first, second []byte) (n int, err error) {
	for i, p := range [2][]byte{first, second} {
		v.parts[i].Base = unsafe.SliceData(p)
		v.parts[i].SetLen(len(p))
	}
	err = v.wait(v.call)
	v.parts = [2]unix.Iovec{}
	switch {
	case err != nil:
		var op *net.OpError
		if errors.As(err, &op) {
			op.Op = v.op // "raw-read"
		}
		return 0, err
	case v.errno != 0:
		return 0, &net.OpError{
			Op: v.op, Net: "tcp", Source: v.nc.LocalAddr(), Addr: v.nc.RemoteAddr(), Err: os.NewSyscallError(v.name, v.errno),
		}
	}
	return v.n, nil
}

// writeAll writes first, then second, completely.
func (v *vector) writeAll(first, second []byte) error {
	for len(first)+len(second) > 0 {
		n, err := v.do(first, second)
		if err != nil {
			return err
		}
		of := min(n, len(first))
		first, second = first[of:], second[n-of:]
	}
	return nil
}
