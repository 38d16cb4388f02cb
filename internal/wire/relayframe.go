package wire

import (
	"encoding/binary"
	"io"

	"golang.org/x/crypto/cryptobyte"
)

const (
	// RelayFrameHeader is the length of a frame's header: kind (1 byte), length (3 bytes, big endian).
	RelayFrameHeader = 4
	// MaxRelayFrame is the most a frame carries. It bounds how long a stream holds up its siblings.
	MaxRelayFrame = 64 << 10
	// RelayProcessWindow is how much stdin, stdout or stderr of a process may be under way without a
	// credit for it. Each has its own: a stdin nobody reads holds up no signal, a stdout nobody reads no
	// exit status.
	RelayProcessWindow = 256 << 10
)

// RelayFrame is the kind of a frame. After a request was granted, both directions of its stream are
// frames; the end of the stream without FrameEnd or FrameExit is a break.
type RelayFrame byte

// The kinds.
const (
	FrameData   RelayFrame = 'D' // bytes: to a socket or from it, stdin, stdout
	FrameEnd    RelayFrame = 'E' // no more FrameData comes; the other direction goes on
	FrameStderr RelayFrame = 'S' // bytes of a process's standard error
	FrameCredit RelayFrame = 'C' // more of a kind may be sent: RelayCredit. Processes only
	FrameSignal RelayFrame = 'K' // to a process's group: the signal's name, without "SIG"
	FrameExit   RelayFrame = 'X' // how a process ended: RelayExit. The last frame of its stream
)

// PutFrameHeader writes a frame's header to the start of b. n must not exceed MaxRelayFrame.
func PutFrameHeader(b []byte, kind RelayFrame, n int) {
	binary.BigEndian.PutUint32(b, uint32(kind)<<24|uint32(n))
}

// AppendFrame appends a whole frame.
func AppendFrame(b []byte, kind RelayFrame, payload []byte) []byte {
	var head [RelayFrameHeader]byte
	PutFrameHeader(head[:], kind, len(payload))
	return append(append(b, head[:]...), payload...)
}

// ReadFrameHeader reads a frame's header; n bytes of payload follow. The error is io.EOF only at a
// frame's border.
func ReadFrameHeader(r io.Reader) (kind RelayFrame, n int, err error) {
	var head [RelayFrameHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, 0, err
	}
	kind, n = RelayFrame(head[0]), int(binary.BigEndian.Uint32(head[:])&0xffffff)
	if n > MaxRelayFrame {
		return 0, 0, protocolError("a frame claims %d bytes, at most %d are allowed", n, MaxRelayFrame)
	}
	return kind, n, nil
}

// ReadFramePayload reads the n bytes of a small frame.
func ReadFramePayload(r io.Reader, n int) ([]byte, error) {
	payload := make([]byte, n)
	_, err := io.ReadFull(r, payload)
	return payload, err
}

// RelayCredit allows n bytes more of a kind, FrameData or FrameStderr.
type RelayCredit struct {
	Kind RelayFrame
	N    uint32
}

// Append appends c as a frame.
func (c RelayCredit) Append(b []byte) []byte {
	payload := append([]byte{byte(c.Kind)}, 0, 0, 0, 0)
	binary.BigEndian.PutUint32(payload[1:], c.N)
	return AppendFrame(b, FrameCredit, payload)
}

// ParseRelayCredit is the reverse of Append, without the header.
func ParseRelayCredit(payload []byte) (RelayCredit, error) {
	if len(payload) != 5 {
		return RelayCredit{}, protocolError("a credit has %d bytes", len(payload))
	}
	c := RelayCredit{Kind: RelayFrame(payload[0]), N: binary.BigEndian.Uint32(payload[1:])}
	if c.Kind != FrameData && c.Kind != FrameStderr || c.N > RelayProcessWindow {
		return RelayCredit{}, protocolError("a credit of %d for %q", c.N, c.Kind)
	}
	return c, nil
}

// RelayExit says how a process ended: by a signal if one is named, else with a status.
type RelayExit struct {
	Status uint8
	Signal string // without "SIG"
	Text   string // what else there is to say, such as why the end is not known; foreign text
}

// Append appends e as a frame; its texts are cut to what fits.
func (e RelayExit) Append(b []byte) []byte {
	var body cryptobyte.Builder
	body.AddUint8(e.Status)
	addString(&body, e.Signal[:min(len(e.Signal), 32)])
	addString(&body, e.Text[:min(len(e.Text), MaxRelayFrame/2)])
	return AppendFrame(b, FrameExit, body.BytesOrPanic())
}

// ParseRelayExit is the reverse of Append, without the header.
func ParseRelayExit(payload []byte) (RelayExit, error) {
	body := cryptobyte.String(payload)
	var e RelayExit
	if ok := body.ReadUint8(&e.Status) && readString(&body, &e.Signal) && readString(&body, &e.Text) && body.Empty(); !ok {
		return RelayExit{}, protocolError("an exit is malformed")
	}
	return e, nil
}
