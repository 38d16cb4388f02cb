package mux

import (
	"context"
	"net"
	"time"

	"golang.org/x/crypto/ssh"
)

// ConnOf returns the connection over what the SSH library returns for a connection of its own.
func ConnOf(nc net.Conn, lib ssh.Conn, chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request) *Conn {
	cfg := &Config{KeepaliveInterval: time.Hour, KeepaliveTimeout: time.Hour, Trace: (*Trace)(nil).withDefaults()}
	return newConn(newNetConn(nc), lib, chans, reqs, "vm:22", cfg)
}

// StartWatched is c.Start. exited reports whether the server has told how the process ended, which it does before the
// rest of its output.
func StartWatched(ctx context.Context, c *Conn, cmd Command) (p *Process, exited func() bool, err error) {
	started, p, err := c.startSession(ctx, cmd, c.openSessions)
	if err != nil {
		return nil, nil, err
	}
	return p, started.exitReceived.Load, nil
}

// SetRelayStartTime changes the time limit of the start of a relay, until the test ends.
func SetRelayStartTime(t interface{ Cleanup(func()) }, d time.Duration) {
	old := relayStartTimeout
	relayStartTimeout = d
	t.Cleanup(func() { relayStartTimeout = old })
}
