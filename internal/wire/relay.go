package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

const (
	// RelayVersion is the version of the relay's protocol in this program.
	RelayVersion = 1

	// managerHello and relayHello start the first line of each end. They differ, so that a program that only echoes is
	// not taken for a relay.
	managerHello = "stepmux-manager/"
	relayHello   = "stepmux-relay/"
	// maxHelloLine bounds the manager's line, its newline included.
	maxHelloLine = len(managerHello) + 4
	// maxRelayNoise bounds the bytes before the relay's hello: the greeting of a login shell.
	maxRelayNoise = 64 << 10
)

// ManagerHello returns the line that asks for a version; the manager speaks first.
func ManagerHello(version int) string { return managerHello + strconv.Itoa(version) + "\n" }

// RelayHello returns the relay's answer, with its own version. If the manager asked for that version, yamux follows.
func RelayHello(version int) string { return relayHello + strconv.Itoa(version) + "\n" }

// ReadManagerHello reads the manager's hello, which must come first. It reads no byte after it.
func ReadManagerHello(r io.Reader) (version int, err error) {
	line := make([]byte, 0, maxHelloLine)
	for {
		var one [1]byte
		if _, err := io.ReadFull(r, one[:]); err != nil {
			return 0, fmt.Errorf("read the manager's hello: %w", err)
		}
		line = append(line, one[0])
		if one[0] == '\n' || len(line) == maxHelloLine || !helloSoFar(line) {
			break
		}
	}
	version, ok := parseHello(line, managerHello)
	if !ok {
		return 0, fmt.Errorf(
			"read the manager's hello: %q is no hello: the relay is started by a manager, "+
				"and speaks its protocol on standard input", line,
		)
	}
	return version, nil
}

// FindRelayHello reads up to and including the relay's hello, and no byte after it. It returns the bytes before it,
// such as a login shell's greeting, as noise. With an error, noise is everything that was read. The error is ErrEcho if
// the manager's hello comes back.
func FindRelayHello(r io.ByteReader) (version int, noise []byte, err error) {
	line := 0 // start of the current line
	for {
		b, err := r.ReadByte()
		if err != nil {
			return 0, noise, err
		}
		noise = append(noise, b)
		if b == '\n' {
			if Echoes(noise[line:]) {
				return 0, noise, ErrEcho
			}
			// A shell's prompt may come first on the line.
			if i := bytes.LastIndex(noise[line:], []byte(relayHello)); i >= 0 {
				if version, ok := parseHello(noise[line+i:], relayHello); ok {
					return version, noise[:line+i], nil
				}
			}
			line = len(noise)
		}
		if len(noise) >= maxRelayNoise {
			return 0, noise, fmt.Errorf("no relay's hello in the first %d bytes", maxRelayNoise)
		}
	}
}

// ErrEcho reports that the program that was started is no relay.
var ErrEcho = errors.New("another program read what was sent to the relay")

// Echoes reports whether text has the manager's hello in it. A shell that takes it for a command, and a program that
// copies its input, print it; a relay does not.
func Echoes(text []byte) bool {
	return bytes.Contains(text, []byte(managerHello+strconv.Itoa(RelayVersion)))
}

// helloSoFar reports whether line may be the start of a hello.
func helloSoFar(line []byte) bool {
	n := min(len(line), len(managerHello))
	return string(line[:n]) == managerHello[:n]
}

func parseHello(line []byte, prefix string) (version int, ok bool) {
	text, ok := bytes.CutPrefix(line, []byte(prefix))
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
	// MaxRelayWindow is the largest window of a stream: how many bytes may be in flight in one direction. The window is
	// minRelayWindow plus relayRate times the round trip. It bounds a stream's throughput over distance, the memory of a
	// stream that is not read, and how long a bulk transfer delays its neighbours: docs/adr/0007 has the measurements.
	MaxRelayWindow = 4 << 20
	minRelayWindow = 3 << 19
	relayRate      = 80 << 20 // bytes per second
	// RelayStall ends a relay whose other end reads no bytes. The keepalive finds a dead peer sooner.
	RelayStall = 2 * time.Minute
)

// RelayWindow returns the window of streams for a round trip of rtt, for the manager. The relay uses MaxRelayWindow.
func RelayWindow(rtt time.Duration) uint32 {
	window := minRelayWindow + relayRate*min(max(rtt, 0), time.Second).Seconds()
	return uint32(min(window, MaxRelayWindow))
}

// ErrRelayProtocol is wrapped by the error for a peer that breaks the relay's protocol.
var ErrRelayProtocol = errors.New("relay protocol error")

func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrRelayProtocol, fmt.Errorf(format, args...))
}
