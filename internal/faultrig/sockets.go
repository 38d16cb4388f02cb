package faultrig

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// tcpEstablished is the state of an open connection in /proc/net/tcp.
const tcpEstablished = "01"

// connectionsTo returns how many open TCP connections a process of our network has to an address.
func connectionsTo(addr netip.AddrPort, pid int) int {
	text, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		return 0
	}
	fds := fmt.Sprintf("/proc/%d/fd", pid)
	entries, _ := os.ReadDir(fds)
	own := map[string]bool{}
	for _, e := range entries {
		to, _ := os.Readlink(filepath.Join(fds, e.Name()))
		if inode, ok := strings.CutPrefix(to, "socket:["); ok {
			own[strings.TrimSuffix(inode, "]")] = true
		}
	}
	return countConnections(string(text), addr, own)
}

// countConnections counts those of the kernel's table that are own, by their inodes. It has sl, local_address,
// rem_address, st, queues, timer, retrnsmt, uid, timeout, inode, and more.
func countConnections(table string, addr netip.AddrPort, own map[string]bool) int {
	ip := addr.Addr().As4()
	want := fmt.Sprintf("%s:%04X", strings.ToUpper(hex.EncodeToString([]byte{ip[3], ip[2], ip[1], ip[0]})), addr.Port())
	n := 0
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) > 9 && f[2] == want && f[3] == tcpEstablished && own[f[9]] {
			n++
		}
	}
	return n
}
