package mux

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/alive"
)

// keepalive ends the connection if the peer sends nothing for interval and then nothing for timeout although it was
// asked. Only this code declares a connection dead; all other waits rely on it.
func (c *Conn) keepalive(interval, timeout time.Duration) {
	ask := func() { c.probe.Start(context.Background(), c.probePeer) }
	if err := alive.Watch(c.done, interval, timeout, c.nc.pulse.Heard, ask); err != nil {
		c.fail("keepalive", err)
	}
}

// probePeer asks the peer for an answer and measures the time. A refusal is an answer too. A dead peer may never
// answer: then the wait ends with the connection.
func (c *Conn) probePeer(context.Context) (rtt, keep time.Duration, err error) {
	asked := time.Now()
	if err := c.ask(); err != nil {
		return 0, 0, err // the connection is ending
	}
	rtt = time.Since(asked)
	c.rtt.Store(int64(rtt))
	c.trace.Keepalive(rtt)
	return rtt, 0, nil
}

// repliers begin the identification strings of servers that answer global requests which they do not know, as RFC 4254
// asks for. ask sends those a request.
var repliers = []string{"SSH-2.0-OpenSSH", "SSH-2.0-dropbear", "SSH-2.0-stepmux", "SSH-2.0-Go"}

// ask waits for an answer of the peer. Some servers, such as TinySSH, answer a global request with
// SSH_MSG_UNIMPLEMENTED (RFC 4253, section 11.4), and the SSH library then ends the connection. So a server that is not
// known is asked for a channel of a type that no server has, which each server refuses (RFC 4254, section 5.1). That
// counts as no session.
func (c *Conn) ask() error {
	version := string(c.ssh.ServerVersion())
	if slices.ContainsFunc(repliers, func(name string) bool { return strings.HasPrefix(version, name) }) {
		_, _, err := c.ssh.SendRequest("keepalive@openssh.com", true, nil)
		return err
	}
	ch, reqs, err := c.ssh.OpenChannel("keepalive@stepmux", nil)
	if _, refused := errors.AsType[*ssh.OpenChannelError](err); refused {
		return nil
	}
	if err != nil {
		return err
	}
	c.spawnOrRun(func() { ssh.DiscardRequests(reqs) }) // ends with the channel
	_ = ch.Close()                                     // fails only if the connection has ended
	return nil
}

// Ping asks the peer for an answer and returns how long it took. Concurrent calls share an answer. If ctx ends first,
// the error is ctx's cause.
func (c *Conn) Ping(ctx context.Context) (time.Duration, error) {
	rtt, err := c.probe.Do(ctx, c.probePeer)
	if err == nil {
		return rtt, nil
	}
	c.awaitEnd(ctx)
	if lost := c.ended("ping"); lost != nil && ctx.Err() == nil {
		return 0, lost
	}
	return 0, fmt.Errorf("ping: %w", err)
}

// confirm waits until the peer has answered, or the connection or ctx has ended. An answer proves that the connection
// was still alive after everything received before the call.
func (c *Conn) confirm(ctx context.Context) {
	for range 2 { // the first answer may have come before the call
		if _, err := c.probe.Do(ctx, c.probePeer); err != nil {
			c.awaitEnd(ctx)
			return
		}
	}
}

// awaitEnd waits for the end of the connection, or of ctx, after a probe has failed: nothing else prevents an answer.
func (c *Conn) awaitEnd(ctx context.Context) {
	select {
	case <-c.done: // soon
	case <-ctx.Done():
	}
}

// measureRTT returns how long the peer takes to answer now, or 0 if it does not answer.
func (c *Conn) measureRTT(ctx context.Context) time.Duration {
	if rtt, err := c.probe.Do(ctx, c.probePeer); err == nil {
		return rtt
	}
	return time.Duration(c.rtt.Load())
}
