package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/hashicorp/yamux"
)

const (
	// RelayVersion is the version of the relay's protocol that this program speaks.
	RelayVersion = 1

	// relayHello starts the line with which each end of a relay introduces itself.
	relayHello = "stepmux-relay/"
	// maxHelloLine bounds that line, its newline included.
	maxHelloLine = len(relayHello) + 4
	// MaxRelayNoise bounds what may come before the relay's hello: the greeting of a login shell.
	MaxRelayNoise = 64 << 10
)

// RelayHello returns the line that names version. The manager's says which version it wants, the
// relay's which it gets; what follows is yamux.
func RelayHello(version int) string { return relayHello + strconv.Itoa(version) + "\n" }

// ReadRelayHello reads the manager's hello, which must come first, and not a byte more.
func ReadRelayHello(r io.Reader) (version int, err error) {
	line := make([]byte, 0, maxHelloLine)
	for {
		var one [1]byte
		if _, err := io.ReadFull(r, one[:]); err != nil {
			return 0, fmt.Errorf("read the relay's hello: %w", err)
		}
		line = append(line, one[0])
		if one[0] == '\n' || len(line) == maxHelloLine || !helloSoFar(line) {
			break
		}
	}
	version, ok := parseHello(line)
	if !ok {
		return 0, fmt.Errorf("read the relay's hello: %q is none: the relay is started by a manager, and speaks its protocol on standard input", line)
	}
	return version, nil
}

// FindRelayHello reads up to and including the relay's hello, and not a byte more from what is behind r.
// A login shell may have printed something first; that is returned as noise. An error also comes with
// what was read instead.
func FindRelayHello(r io.ByteReader) (version int, noise []byte, err error) {
	for {
		b, err := r.ReadByte()
		if err != nil {
			return 0, noise, err
		}
		noise = append(noise, b)
		switch {
		case b == '\n':
			// A shell's prompt may stand before it on the line.
			if i := bytes.LastIndex(noise, []byte(relayHello)); i >= 0 {
				if version, ok := parseHello(noise[i:]); ok {
					return version, noise[:i], nil
				}
			}
		case len(noise) >= MaxRelayNoise:
			return 0, noise, fmt.Errorf("no relay's hello in the first %d bytes", MaxRelayNoise)
		}
	}
}

// helloSoFar reports whether line may become a hello.
func helloSoFar(line []byte) bool {
	n := min(len(line), len(relayHello))
	return string(line[:n]) == relayHello[:n]
}

func parseHello(line []byte) (version int, ok bool) {
	text, ok := bytes.CutPrefix(line, []byte(relayHello))
	if !ok || len(text) < 2 || text[len(text)-1] != '\n' {
		return 0, false
	}
	for _, c := range text[:len(text)-1] {
		if c < '0' || c > '9' || len(text) > 4 {
			return 0, false
		}
		version = 10*version + int(c-'0')
	}
	return version, version > 0
}

const (
	// RelayStreamWindow is how much of one stream may be under way in one direction. It bounds a
	// stream's throughput over distance, and what a stream nobody reads costs in memory.
	RelayStreamWindow = 4 << 20
	// RelayBacklog is how many streams may wait to be answered.
	RelayBacklog = 1024
	// relayWriteTimeout ends a relay whose other end takes nothing. Who finds the dead is the keepalive,
	// sooner than this.
	relayWriteTimeout = 2 * time.Minute
)

// RelayConfig returns the yamux configuration of both ends. yamux's own keepalive is off: it takes a peer
// that is busy for a dead one.
func RelayConfig() *yamux.Config {
	cfg := yamux.DefaultConfig()
	cfg.AcceptBacklog = RelayBacklog
	cfg.EnableKeepAlive = false
	cfg.ConnectionWriteTimeout = relayWriteTimeout
	cfg.MaxStreamWindowSize = RelayStreamWindow
	cfg.StreamOpenTimeout = 0 // the answer to each request has the caller's own bound
	cfg.LogOutput = io.Discard
	return cfg
}

// ErrRelayProtocol is wrapped by the errors of what breaks the relay's protocol.
var ErrRelayProtocol = errors.New("relay protocol error")

func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrRelayProtocol, fmt.Errorf(format, args...))
}

// yamuxHeader is the length of yamux's frame header; its second byte is the type, its last four the
// length.
const yamuxHeader = 12

// YamuxBodyFollows reports whether p is the header of a yamux data frame, whose body is written next:
// worth nothing by itself to who gathers writes.
func YamuxBodyFollows(p []byte) bool {
	return len(p) == yamuxHeader && p[0] == 0 && p[1] == 0 && binary.BigEndian.Uint32(p[8:]) > 0
}
