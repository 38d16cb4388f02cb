package faults

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// tcpEstablished is the state of an open connection (tcp_states.h).
const tcpEstablished = 1

// connectionsTo returns how many open TCP connections a process has to an address. It looks at the process's own
// sockets: the kernel's table of all, /proc/net/tcp, takes it a walk over a quarter of a million buckets.
func connectionsTo(addr netip.AddrPort, pid int) int {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0 // it has ended
	}
	defer unix.Close(process)
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	n := 0
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err == nil && isConnectionTo(addr, process, fd) {
			n++
		}
	}
	return n
}

// isConnectionTo reports whether a process's descriptor is an open TCP connection to an address.
func isConnectionTo(addr netip.AddrPort, process, fd int) bool {
	own, err := unix.PidfdGetfd(process, fd, 0)
	if err != nil {
		return false // closed by now
	}
	defer unix.Close(own)
	peer, err := unix.Getpeername(own)
	if err != nil {
		return false
	}
	to, ok := peer.(*unix.SockaddrInet4)
	if !ok || netip.AddrPortFrom(netip.AddrFrom4(to.Addr), uint16(to.Port)) != addr {
		return false
	}
	info, err := unix.GetsockoptTCPInfo(own, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err == nil && info.State == tcpEstablished
}
