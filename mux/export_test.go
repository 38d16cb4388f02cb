package mux

import (
	"context"
	"time"
)

// StartWatched is c.Start. exited reports whether the server has told how the process ended, which it does before the
// rest of its output.
func StartWatched(ctx context.Context, c *Conn, cmd Command) (p *Process, exited func() bool, err error) {
	started, err := c.startSession(ctx, cmd)
	if err != nil {
		return nil, nil, err
	}
	return started.process(cmd), started.exitReceived.Load, nil
}

// SetHostKeyCommandTime changes what bounds a command for host keys, until the test ends.
func SetHostKeyCommandTime(t interface{ Cleanup(func()) }, d time.Duration) {
	old := hostKeyCommandLimit
	hostKeyCommandLimit.Time = d
	t.Cleanup(func() { hostKeyCommandLimit = old })
}

// SetRelayStartTime changes what bounds the start of a relay, until the test ends.
func SetRelayStartTime(t interface{ Cleanup(func()) }, d time.Duration) {
	old := relayStartTimeout
	relayStartTimeout = d
	t.Cleanup(func() { relayStartTimeout = old })
}

// SetAgentTime changes what bounds an exchange with an agent, until the test ends.
func SetAgentTime(t interface{ Cleanup(func()) }, d time.Duration) {
	old := agentTimeout
	agentTimeout = d
	t.Cleanup(func() { agentTimeout = old })
}
