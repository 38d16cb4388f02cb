package mux

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// setQuickAck asks the kernel to acknowledge at once instead of delaying by some 40 ms. sshd sets TCP_NODELAY only at
// the first exec, so until then its small packets wait for our ACKs: a login takes half the time with this. The option
// is not sticky (tcp(7)), so it is set after each read.
func setQuickAck(nc net.Conn) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return
	}
	// An error only makes it slower: the socket is not TCP, or closed.
	_ = rc.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1) })
}
