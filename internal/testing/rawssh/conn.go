package rawssh

import (
	"bufio"
	"crypto/cipher"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"

	"golang.org/x/crypto/ssh"
)

// Messages, by their numbers (RFC 4250, section 4.1).
const (
	Disconnect      = 1
	Ignore          = 2
	Unimplemented   = 3
	Debug           = 4
	ServiceRequest  = 5
	ServiceAccept   = 6
	KexInit         = 20
	NewKeys         = 21
	KexReply        = 31
	AuthRequest     = 50
	AuthFailure     = 51
	AuthSuccess     = 52
	AuthBanner      = 53
	AuthInfoRequest = 60 // RFC 4256
	GlobalRequest   = 80
	RequestSuccess  = 81
	RequestFailure  = 82
	ChannelOpen     = 90
	OpenConfirm     = 91
	OpenFailure     = 92
	WindowAdjust    = 93
	ChannelData     = 94
	ExtendedData    = 95
	ChannelEOF      = 96
	ChannelClose    = 97
	ChannelRequest  = 98
	ChannelSuccess  = 99
	ChannelFailure  = 100
	Ping            = 192 // ping@openssh.com
)

// maxPacket bounds a client's packet.
const maxPacket = 512 << 10

// Conn is the server's end of one connection. One goroutine may read while others write.
type Conn struct {
	// NoStrictKex makes this a server without the strict key exchange (OpenSSH's PROTOCOL, section 1.10). Set it before
	// Exchange.
	NoStrictKex bool

	nc  net.Conn
	in  *bufio.Reader
	key ssh.Signer

	serverVersion, clientVersion string
	clientKex                    []byte // the client's KEXINIT
	sessionID                    []byte // once keys have been exchanged

	opener *sealing // of incoming packets; nil before the key exchange

	mu     sync.Mutex // guards the following
	out    *bufio.Writer
	sealer *sealing
}

// sealing is aes128-gcm@openssh.com in one direction.
type sealing struct {
	aead  cipher.AEAD
	nonce [12]byte
}

// next counts one packet.
func (s *sealing) next() {
	count := s.nonce[4:]
	binary.BigEndian.PutUint64(count, binary.BigEndian.Uint64(count)+1)
}

// New returns a Conn over nc, which the caller closes. key is the server's host key, of the type ssh-ed25519.
func New(nc net.Conn, key ssh.Signer) *Conn {
	return &Conn{nc: nc, in: bufio.NewReaderSize(nc, 64<<10), out: bufio.NewWriterSize(nc, 64<<10), key: key}
}

// WriteRaw sends bytes unchanged.
func (c *Conn) WriteRaw(p []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.out.Write(p); err != nil {
		return err
	}
	return c.out.Flush()
}

// Write sends a message. Its first byte is its number.
func (c *Conn) Write(message []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.writeLocked(message); err != nil {
		return err
	}
	return c.out.Flush()
}

// Queue is Write without a flush: the message is sent with a later Write, or when the buffer is full.
func (c *Conn) Queue(message []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writeLocked(message)
}

// writeLocked sends a packet (RFC 4253, section 6).
func (c *Conn) writeLocked(message []byte) error {
	const block = 16 // before the key exchange 8 would be enough
	aad := 4         // the padding covers the length, unless that is sent in clear beside a cipher
	if c.sealer != nil {
		aad = 0
	}
	padding := block - (aad+1+len(message))%block
	if padding < 4 {
		padding += block
	}
	packet := make([]byte, 5, 5+len(message)+padding+16)
	binary.BigEndian.PutUint32(packet, uint32(1+len(message)+padding))
	packet[4] = byte(padding)
	packet = append(packet, message...)
	packet = append(packet, make([]byte, padding)...)
	if s := c.sealer; s != nil {
		packet = s.aead.Seal(packet[:4], s.nonce[:], packet[4:], packet[:4])
		s.next()
	}
	_, err := c.out.Write(packet)
	return err
}

// Read returns the client's next message.
func (c *Conn) Read() ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(c.in, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n < 2 || n > maxPacket {
		return nil, fmt.Errorf("rawssh: a packet of %d bytes", n)
	}
	if c.opener != nil {
		n += uint32(c.opener.aead.Overhead())
	}
	packet := make([]byte, n)
	if _, err := io.ReadFull(c.in, packet); err != nil {
		return nil, err
	}
	if s := c.opener; s != nil {
		var err error
		if packet, err = s.aead.Open(packet[:0], s.nonce[:], packet, head[:]); err != nil {
			return nil, fmt.Errorf("rawssh: %w", err)
		}
		s.next()
	}
	padding := int(packet[0])
	if padding+2 > len(packet) {
		return nil, fmt.Errorf("rawssh: %d bytes of padding in a packet of %d", padding, len(packet))
	}
	return packet[1 : len(packet)-padding], nil
}

// Close ends the connection.
func (c *Conn) Close() error { return c.nc.Close() }

// NoMore ends the server's direction of the connection. The client may still send.
func (c *Conn) NoMore() error {
	half, ok := c.nc.(interface{ CloseWrite() error })
	if !ok {
		return c.nc.Close()
	}
	return half.CloseWrite()
}
