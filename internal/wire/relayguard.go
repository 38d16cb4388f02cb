package wire

import (
	"encoding/binary"
	"io"
	"time"
)

const (
	// relayPings is how many pings of a relay are taken at once, and relayPingInterval when another is. A relay
	// asks for a sign of life when it has heard nothing for many seconds.
	relayPings        = 16
	relayPingInterval = time.Second
)

// RelayGuard reads what a relay says, and breaks off where yamux would let it fill the manager's memory: yamux
// keeps the streams that the other end opens, with all they carry, until somebody accepts them, which a manager
// does not; and it answers each ping in a goroutine of its own, however many wait to be written.
type RelayGuard struct {
	from  io.Reader
	now   func() time.Time
	head  [yamuxHeader]byte
	have  int    // bytes of head
	body  uint32 // bytes of a body that are still to come
	pings int    // that may still be taken
	since time.Time
}

// NewRelayGuard returns a RelayGuard of what follows the hello.
func NewRelayGuard(from io.Reader) *RelayGuard {
	return &RelayGuard{from: from, now: time.Now, pings: relayPings}
}

// Read implements io.Reader. Its errors other than those of what it reads from wrap ErrRelayProtocol.
func (g *RelayGuard) Read(p []byte) (int, error) {
	n, err := g.from.Read(p)
	if broken := g.check(p[:n]); broken != nil {
		return 0, broken
	}
	return n, err
}

// check follows the frames that p is a piece of.
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

// frame judges a frame by its header; what makes no sense is left to yamux.
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
