package connector

import (
	"net"
	"slices"
	"sync/atomic"

	"golang.org/x/net/http2"
)

// fewWrites is a bridge as gRPC's client uses it, with two writes less: each write is a packet of SSH, and wakes the
// processes on the way and the step runner. gRPC writes HTTP/2's preface by itself, though its settings follow at once,
// and says goodbye with a frame although the end of the bridge says the same.
type fewWrites struct {
	net.Conn
	ended *atomic.Bool // the client is closed: its calls have ended, and nothing more need be sent
	held  []byte       // the preface; the first two writes are those of one goroutine
	begun bool
}

// Write implements net.Conn.
func (c *fewWrites) Write(p []byte) (int, error) {
	switch {
	case c.ended.Load():
		return len(p), nil
	case !c.begun && string(p) == http2.ClientPreface:
		c.begun, c.held = true, p
		return len(p), nil
	case c.held == nil:
		return c.Conn.Write(p)
	}
	held := len(c.held)
	both := slices.Concat(c.held, p)
	c.held = nil
	n, err := c.Conn.Write(both)
	return max(n-held, 0), err
}
