package pipe

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// WaitHangup waits until the peer has closed conn, or until conn is closed here. It does not return when the peer only
// ends its sending half. No other goroutine may read from conn at the same time.
func WaitHangup(conn *net.UnixConn) {
	rc, err := conn.SyscallConn()
	if err != nil {
		return
	}
	_ = rc.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd)}}, 0) // no events are needed: poll always reports a hang-up
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
}
