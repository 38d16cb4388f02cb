package wire

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"golang.org/x/crypto/cryptobyte"
)

// maxRelayMessage bounds a request and a response. Larger data travels on stdin.
const maxRelayMessage = 512 << 10

// A relay's stream begins with one request of the manager and one response of the relay:
//
//	kind (1 byte), length (3 bytes, big endian), body
//
// Strings and lists in a body have a length of 3 bytes before them.
const (
	relayStart   = 1
	relayConnect = 2
)

// RelayStart asks for a process.
type RelayStart struct {
	// Argv is the program and its arguments. A name without a slash is looked up in the relay's PATH. If Argv is empty,
	// the user's login shell runs Line.
	Argv []string
	Line string
	// Dir is the working directory; if empty, the user's home.
	Dir string
	// Env is added to the relay's own environment, as KEY=VALUE.
	Env []string
	// Ready is the path of the socket on which the process will listen, if it prints a ReadyLine for it on stderr. A
	// RelayConnect can wait for that. May be empty.
	Ready string
}

// RelayConnect asks for a connection to a unix socket in the user's own socket base.
type RelayConnect struct {
	Path string
	// Wait is for a socket that may not exist yet. It bounds the relay's wait for the ReadyLine of a process that was
	// started with this path in Ready. It is rounded down to milliseconds. If zero, the relay does not wait.
	Wait time.Duration
}

// RelayCode is the kind of answer to a request.
type RelayCode uint8

// The codes. Unknown codes count as RelayFailed.
const (
	RelayOK        RelayCode = iota
	RelayFailed              // see the text
	RelayInvalid             // the request is not valid
	RelayForbidden           // the path is not a socket of this user's builds
	RelayNotFound            // no such program, directory or socket
	RelayNotReady            // the process has not begun to listen
	RelayBusy                // the relay is at its limit
	RelayClosing             // the relay is about to end
)

// RelayResponse is the relay's answer to a request.
type RelayResponse struct {
	Code RelayCode
	Text string // the reason, if Code is not RelayOK
}

// RefuseRelay returns the answer that refuses a request.
func RefuseRelay(code RelayCode, format string, args ...any) RelayResponse {
	return RelayResponse{code, fmt.Sprintf(format, args...)}
}

// Error returns the reason of a refusal.
func (r RelayResponse) Error() string { return r.Text }

// AppendRelayStart appends r in its wire form.
func AppendRelayStart(b []byte, r RelayStart) ([]byte, error) {
	return appendMessage(b, relayStart, func(body *cryptobyte.Builder) {
		addStrings(body, r.Argv)
		addString(body, r.Line)
		addString(body, r.Dir)
		addStrings(body, r.Env)
		addString(body, r.Ready)
	})
}

// AppendRelayConnect appends r in its wire form.
func AppendRelayConnect(b []byte, r RelayConnect) ([]byte, error) {
	return appendMessage(b, relayConnect, func(body *cryptobyte.Builder) {
		addString(body, r.Path)
		body.AddUint32(uint32(min(max(r.Wait.Milliseconds(), 0), math.MaxUint32)))
	})
}

// AppendRelayResponse appends r in its wire form. It cuts a Text that is too long.
func AppendRelayResponse(b []byte, r RelayResponse) []byte {
	b, err := appendMessage(b, byte(r.Code), func(body *cryptobyte.Builder) {
		addString(body, r.Text[:min(len(r.Text), maxRelayMessage/2)])
	})
	if err != nil {
		panic(fmt.Sprintf("BUG: wire: a bounded response does not fit: %v", err))
	}
	return b
}

// ReadRelayRequest reads a *RelayStart or a *RelayConnect, and no byte after it. It allocates memory only for bytes
// that have arrived, not for a claimed length. Errors other than those of r wrap ErrRelayProtocol.
func ReadRelayRequest(r io.Reader) (any, error) {
	kind, body, err := readMessage(r)
	if err != nil {
		return nil, err
	}
	switch kind {
	case relayStart:
		var s RelayStart
		ok := readStrings(&body, &s.Argv) && readString(&body, &s.Line) && readString(&body, &s.Dir) &&
			readStrings(&body, &s.Env) && readString(&body, &s.Ready) && body.Empty()
		if !ok {
			return nil, protocolError("a start request is malformed")
		}
		return &s, s.check()
	case relayConnect:
		var c RelayConnect
		var wait uint32
		if ok := readString(&body, &c.Path) && body.ReadUint32(&wait) && body.Empty(); !ok {
			return nil, protocolError("a connect request is malformed")
		}
		c.Wait = time.Duration(wait) * time.Millisecond
		return &c, nil
	default:
		return nil, protocolError("unknown request %d", kind)
	}
}

// check refuses requests that cannot start a process.
func (s *RelayStart) check() error {
	switch {
	case len(s.Argv) == 0 && s.Line == "":
		return protocolError("a start request names no program")
	case len(s.Argv) > 0 && s.Line != "":
		return protocolError("a start request has both a program and a command line")
	case len(s.Argv) > 0 && s.Argv[0] == "":
		return protocolError("a start request names an empty program")
	}
	for _, text := range append([]string{s.Line, s.Dir}, append(s.Argv, s.Env...)...) {
		if strings.IndexByte(text, 0) >= 0 {
			return protocolError("a start request has a NUL byte in it")
		}
	}
	for _, entry := range s.Env {
		if i := strings.IndexByte(entry, '='); i <= 0 {
			return protocolError("an environment entry is not KEY=VALUE")
		}
	}
	return nil
}

// ReadRelayResponse reads the answer to a request.
func ReadRelayResponse(r io.Reader) (RelayResponse, error) {
	kind, body, err := readMessage(r)
	if err != nil {
		return RelayResponse{}, err
	}
	var text string
	if ok := readString(&body, &text) && body.Empty(); !ok {
		return RelayResponse{}, protocolError("a response is malformed")
	}
	return RelayResponse{Code: RelayCode(kind), Text: text}, nil
}

func appendMessage(b []byte, kind byte, add func(*cryptobyte.Builder)) ([]byte, error) {
	start := len(b)
	builder := cryptobyte.NewBuilder(b)
	builder.AddUint8(kind)
	builder.AddUint24LengthPrefixed(add)
	out, err := builder.Bytes()
	if err != nil {
		return b, fmt.Errorf("relay request: %w", err)
	}
	if n := len(out) - start - messageHeader; n > maxRelayMessage {
		return b, fmt.Errorf(
			"relay request: it has %d bytes, at most %d can be sent: pass large data on stdin", n, maxRelayMessage,
		)
	}
	return out, nil
}

// messageHeader is the length of a kind and a length.
const messageHeader = 4

func readMessage(r io.Reader) (kind byte, body cryptobyte.String, err error) {
	var head [messageHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := int(head[1])<<16 | int(head[2])<<8 | int(head[3])
	if n > maxRelayMessage {
		return 0, nil, protocolError("a message claims %d bytes, at most %d are allowed", n, maxRelayMessage)
	}
	body, err = io.ReadAll(io.LimitReader(r, int64(n)))
	if err == nil && len(body) < n {
		err = io.ErrUnexpectedEOF
	}
	return head[0], body, err
}

func addString(b *cryptobyte.Builder, s string) {
	b.AddUint24LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes([]byte(s)) })
}

func addStrings(b *cryptobyte.Builder, all []string) {
	b.AddUint24LengthPrefixed(func(b *cryptobyte.Builder) {
		for _, s := range all {
			addString(b, s)
		}
	})
}

func readString(from *cryptobyte.String, to *string) bool {
	var s cryptobyte.String
	ok := from.ReadUint24LengthPrefixed(&s)
	*to = string(s)
	return ok
}

func readStrings(from *cryptobyte.String, to *[]string) bool {
	var list cryptobyte.String
	if !from.ReadUint24LengthPrefixed(&list) {
		return false
	}
	for !list.Empty() {
		var s string
		if !readString(&list, &s) {
			return false
		}
		*to = append(*to, s)
	}
	return true
}
