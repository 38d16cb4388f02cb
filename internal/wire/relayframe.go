package wire

import (
	"encoding/binary"
	"io"

	"golang.org/x/crypto/cryptobyte"
)

const (
	// RelayFrameHeader is the length of a frame's header: kind (1 byte), length (3 bytes, big endian).
	RelayFrameHeader = 4
	// MaxRelayFrame bounds the payload of a frame, and so how long a stream delays its siblings.
	MaxRelayFrame = 64 << 10
	// RelayProcessWindow is how many bytes of a process's stdin, stdout or stderr may be in flight without a credit.
	// Each has its own window: an unread stdin does not delay a signal, and an unread stdout does not delay an exit
	// status.
	RelayProcessWindow = 256 << 10
)

// RelayFrame is the kind of a frame. After a granted request, both directions of its stream carry frames. A stream that
// ends without FrameEnd or FrameExit is broken.
type RelayFrame byte

// The kinds.
const (
	FrameData   RelayFrame = 'D' // bytes: to a socket or from it, stdin, stdout
	FrameEnd    RelayFrame = 'E' // the last FrameData was sent; the other direction stays open
	FrameStderr RelayFrame = 'S' // bytes of a process's standard error
	FrameCredit RelayFrame = 'C' // the peer may send more of a kind: RelayCredit. Processes only
	FrameSignal RelayFrame = 'K' // to a process's group: the signal's name, without "SIG"
	FrameExit   RelayFrame = 'X' // the end of a process: RelayExit. The last frame of its stream
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

// ReadFrameHeader reads a frame's header; n bytes of payload follow. The error is io.EOF only between frames.
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

// RelayCredit allows n more bytes of a kind, FrameData or FrameStderr.
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

// RelayExit is the end of a process: by Signal if that is not empty, otherwise with Status.
type RelayExit struct {
	Status uint8
	Signal string // without "SIG"
	Text   string // more about it, for example why the end is not known; untrusted text
}

// Append appends e as a frame. Texts that are too long are cut.
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
