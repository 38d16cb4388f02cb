package main

import (
	"net"
	"os"
)

// notify tells systemd the state of a service of Type=notify (sd_notify(3)). Without systemd it does nothing.
func notify(state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"}) // @ is an abstract one
	if err != nil {
		return // systemd finds by itself that it was not told
	}
	_, _ = conn.Write([]byte(state))
	_ = conn.Close() // nothing waits in it
}
