package main

import (
	"net"
	"os"
)

// notify reports the state of a service of Type=notify to systemd (sd_notify(3)). Without systemd it does nothing.
func notify(state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"}) // @ marks an abstract socket
	if err != nil {
		return // systemd will notice that no message came
	}
	_, _ = conn.Write([]byte(state))
	_ = conn.Close() // everything has been sent
}
