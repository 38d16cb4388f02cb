package rawssh

import (
	"encoding/binary"

	"golang.org/x/crypto/ssh"
)

// Window is the window that Answer grants the client for each channel.
const Window = 1 << 20

// Each serves the client until it has logged in, and then passes each of its messages to handle, until handle returns
// an error or the client has gone.
func (c *Conn) Each(handle func(message []byte) error) {
	if c.Handshake() != nil {
		return
	}
	for {
		message, err := c.Read()
		if err != nil || handle(message) != nil {
			return
		}
	}
}

// Answer replies to a message like a server that grants everything. It gives channels the client's number, grants
// requests, refuses keepalives (which is an answer, too), and answers a close with a close. It reports whether the
// message was a channel request.
func (c *Conn) Answer(message []byte) (id uint32, granted bool, err error) {
	switch message[0] {
	case GlobalRequest:
		return 0, false, c.Write([]byte{RequestFailure})
	case ChannelOpen:
		var open struct {
			Kind   string `sshtype:"90"`
			ID     uint32
			Window uint32
			Packet uint32
			Rest   []byte `ssh:"rest"`
		}
		if err := ssh.Unmarshal(message, &open); err != nil {
			return 0, false, err
		}
		return open.ID, false, c.Write(Confirm(open.ID, Window, 32<<10))
	case ChannelRequest:
		var request struct {
			ID        uint32 `sshtype:"98"`
			Kind      string
			WantReply bool
			Rest      []byte `ssh:"rest"`
		}
		if err := ssh.Unmarshal(message, &request); err != nil || !request.WantReply {
			return 0, false, err
		}
		return request.ID, true, c.Write(OnChannel(ChannelSuccess, request.ID))
	case ChannelClose:
		return 0, false, c.Write(OnChannel(ChannelClose, binary.BigEndian.Uint32(message[1:])))
	}
	return 0, false, nil
}

// Confirm returns an OpenConfirm.
func Confirm(id, window, packet uint32) []byte {
	return ssh.Marshal(struct {
		Theirs uint32 `sshtype:"91"`
		Ours   uint32
		Window uint32
		Packet uint32
	}{id, id, window, packet})
}

// Refuse returns an OpenFailure.
func Refuse(id, code uint32, text string) []byte {
	return ssh.Marshal(struct {
		ID       uint32 `sshtype:"92"`
		Code     uint32
		Text     string
		Language string
	}{id, code, text, "en"})
}

// OnChannel returns a message about a channel: its number, then rest.
func OnChannel(number byte, id uint32, rest ...byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{number}, id), rest...)
}

// Request returns a ChannelRequest.
func Request(id uint32, kind string, wantReply bool, payload []byte) []byte {
	return ssh.Marshal(struct {
		ID        uint32 `sshtype:"98"`
		Kind      string
		WantReply bool
		Rest      []byte `ssh:"rest"`
	}{id, kind, wantReply, payload})
}

// Global returns a GlobalRequest.
func Global(kind string, wantReply bool, payload []byte) []byte {
	return ssh.Marshal(struct {
		Kind      string `sshtype:"80"`
		WantReply bool
		Rest      []byte `ssh:"rest"`
	}{kind, wantReply, payload})
}

// Open returns a ChannelOpen.
func Open(kind string, id, window, packet uint32, rest []byte) []byte {
	return ssh.Marshal(struct {
		Kind   string `sshtype:"90"`
		ID     uint32
		Window uint32
		Packet uint32
		Rest   []byte `ssh:"rest"`
	}{kind, id, window, packet, rest})
}

// Data returns a ChannelData.
func Data(id uint32, p []byte) []byte {
	return ssh.Marshal(struct {
		ID   uint32 `sshtype:"94"`
		Data []byte
	}{id, p})
}

// Extended returns an ExtendedData; stderr's kind is 1.
func Extended(id, kind uint32, p []byte) []byte {
	return ssh.Marshal(struct {
		ID   uint32 `sshtype:"95"`
		Kind uint32
		Data []byte
	}{id, kind, p})
}

// Bye returns a Disconnect.
func Bye(code uint32, text string) []byte {
	return ssh.Marshal(struct {
		Code     uint32 `sshtype:"1"`
		Text     string
		Language string
	}{code, text, ""})
}
