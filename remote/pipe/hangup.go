package pipe

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// WaitHangup waits until the peer has closed conn, not only ended its sending half, or until conn is closed here. No
// other goroutine may read from conn meanwhile.
func WaitHangup(conn *net.UnixConn) {
	rc, err := conn.SyscallConn()
	if err != nil {
		return
	}
	_ = rc.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd)}}, 0) // no events: poll always reports a hang-up
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
}
