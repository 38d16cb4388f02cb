package mux

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// setQuickAck asks the kernel to acknowledge at once instead of up to 40 ms later. sshd sets TCP_NODELAY only at the
// first exec; until then its small packets wait for our ACKs, so that a login takes twice as long. The option is not
// sticky (tcp(7)), so it is set after each read.
func setQuickAck(nc net.Conn) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return
	}
	// Errors are ignored: without the option (not TCP, or closed) the connection is only slower.
	_ = rc.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1) })
}
