package wire

import (
	"encoding/binary"
	"io"
	"time"
)

const (
	// relayPings is how many pings a relay may send at once; it gains another one each relayPingInterval. An honest relay
	// pings after many seconds of silence.
	relayPings        = 16
	relayPingInterval = time.Second
)

// RelayGuard reads from a relay and fails where yamux would let the relay fill the manager's memory. yamux keeps
// streams that its peer opens, with their data, until they are accepted, and a manager accepts no stream. It answers
// each ping in a goroutine of its own, without a limit.
type RelayGuard struct {
	from  io.Reader
	now   func() time.Time
	head  [yamuxHeader]byte
	have  int    // bytes of head
	body  uint32 // bytes of a body that are still missing
	pings int    // that are still allowed
	since time.Time
}

// NewRelayGuard returns a RelayGuard for the bytes after the hello.
func NewRelayGuard(from io.Reader) *RelayGuard {
	return &RelayGuard{from: from, now: time.Now, pings: relayPings}
}

// Read implements io.Reader. It passes on the errors of the underlying Reader; its own wrap ErrRelayProtocol.
func (g *RelayGuard) Read(p []byte) (int, error) {
	n, err := g.from.Read(p)
	if broken := g.check(p[:n]); broken != nil {
		return 0, broken
	}
	return n, err
}

// check follows the frames in the next piece of the stream.
func (g *RelayGuard) check(p []byte) error {
	for len(p) > 0 {
		if g.body > 0 {
			n := min(uint64(g.body), uint64(len(p)))
			g.body -= uint32(n)
			p = p[n:]
			continue
		}
		n := copy(g.head[g.have:], p)
		g.have += n
		p = p[n:]
		if g.have < yamuxHeader {
			return nil
		}
		g.have = 0
		if err := g.frame(); err != nil {
			return err
		}
	}
	return nil
}

// frame checks the header of a frame. yamux refuses malformed ones.
func (g *RelayGuard) frame() error {
	const (
		data, windowUpdate, ping = 0, 1, 2
		syn                      = 1
	)
	kind, opens := g.head[1], binary.BigEndian.Uint16(g.head[2:])&syn != 0
	if kind == data {
		g.body = binary.BigEndian.Uint32(g.head[8:])
	}
	switch {
	case !opens:
		return nil
	case kind == data, kind == windowUpdate:
		return protocolError("the relay opened a stream")
	case kind != ping:
		return nil
	}
	now := g.now()
	if more := int(now.Sub(g.since) / relayPingInterval); more > 0 {
		g.pings, g.since = min(g.pings+more, relayPings), now
	}
	if g.pings == 0 {
		return protocolError("the relay pings more than once a second")
	}
	g.pings--
	return nil
}
