package mux

import (
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/hooks"
)

// ChannelKind is a kind of channel, for a [Trace].
type ChannelKind string

// The kinds.
const (
	SessionChannel     ChannelKind = "session"     // a process by sshd
	StreamlocalChannel ChannelKind = "streamlocal" // a unix socket by sshd
	TCPChannel         ChannelKind = "tcp"         // a host as seen from the VM
	RelayChannel       ChannelKind = "relay"       // a process or a unix socket by the relay
)

// Trace is a set of hooks. Each may be nil. They are called with no lock held, from many goroutines at once.
// The caller waits for them, so they must return soon, and they must not call the connection.
type Trace struct {
	// DialPhase is called at the end of each phase of a dial: "prepare" (host keys and credentials are looked up),
	// "connect" (TCP and jump hosts), "handshake" (the key exchange, up to the check of the host key) and "login".
	// err is not nil for the phase that failed.
	DialPhase func(phase string, took time.Duration, err error)
	// HostKey is called when the server has shown its key. err is nil if the key was accepted; by then names the
	// policy that accepted it, for people.
	HostKey func(key ssh.PublicKey, by string, err error)
	// ChannelOpen is called when the server or the relay has answered a request for a channel. A session that was
	// refused may be tried again.
	ChannelOpen func(kind ChannelKind, took time.Duration, err error)
	// ChannelClose is called when an open channel has ended.
	ChannelClose func(kind ChannelKind)
	// Refused is called when the server refuses a session because its limit is reached.
	Refused func()
	// Keepalive is called when the peer has answered a probe.
	Keepalive func(rtt time.Duration)
	// Close is called when the connection has ended. cause is that of Conn.Err.
	Close func(cause error)
}

// withDefaults returns a copy of t, which may be nil, with all hooks set.
func (t *Trace) withDefaults() *Trace {
	d := Trace{}
	if t != nil {
		d = *t
	}
	hooks.Fill(&d)
	return &d
}

// channelKinds holds the kinds of SSH's channel types.
var channelKinds = map[string]ChannelKind{
	"session":                        SessionChannel,
	"direct-streamlocal@openssh.com": StreamlocalChannel,
	"direct-tcpip":                   TCPChannel,
}
