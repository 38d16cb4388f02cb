package mux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/stepmux/stepmux/mux/login"
)

const (
	defaultKeepaliveInterval = 15 * time.Second
	defaultKeepaliveTimeout  = 15 * time.Second
)

// Config describes how to connect. Dial copies it and calls Check.
type Config struct {
	// User is the account on the VM. Required.
	User string
	// Auth holds the ways to log in: all keys are tried, in order, then the first password. Required,
	// unless there are Credentials. Package login makes them: KeyFile, Key, Agent, Password.
	Auth []login.Auth
	// Credentials returns ways to log in that are tried before those of Auth. It is called for each
	// connection, before it is made, so that they may expire. It returns soon after ctx, the dial's, has ended.
	// May be nil.
	Credentials func(ctx context.Context) ([]login.Auth, error)
	// AllowSHA1 also offers key exchanges and RSA signatures with SHA-1, which is broken, for servers that
	// have nothing better.
	AllowSHA1 bool

	// HostKeys decides which server may answer. Required: there is no insecure default.
	// Package login makes it: PinnedHostKeys, KnownHosts, HostKeyCommand, FirstUse; FirstOf joins several.
	HostKeys login.HostKeys
	// HostKeyAlias is the name that HostKeys looks the server up by, instead of its address. May be empty.
	HostKeyAlias string
	// MachineID identifies the machine and is never used for another one. login.FirstUse needs it.
	MachineID string

	// DialNet makes the connection under SSH to addr, a host:port. It returns soon after ctx has ended: Dial waits for
	// it. If nil, by TCP. See [Conn.DialNet].
	DialNet func(ctx context.Context, addr string) (net.Conn, error)

	// KeepaliveInterval is how long the peer may be silent before it is asked to answer.
	// If zero, 15s.
	KeepaliveInterval time.Duration
	// KeepaliveTimeout is how long the answer may take. A dead peer is found, and the connection
	// closed, within KeepaliveInterval + KeepaliveTimeout. If zero, 15s.
	KeepaliveTimeout time.Duration

	// SessionLimit is the server's MaxSessions, the sessions it allows on one connection. If zero,
	// it is learned from the server's first refusal.
	SessionLimit int

	// Trace has hooks that are called as things happen. May be nil.
	Trace *Trace
}

// Check returns an error that names the field if there is a mistake in c.
func (c *Config) Check() error {
	switch {
	case c == nil:
		return errors.New("mux: Config is nil")
	case c.User == "":
		return errors.New("mux: Config.User is empty")
	case len(c.Auth) == 0 && c.Credentials == nil:
		return errors.New("mux: Config.Auth is empty: name a private key, a password or an agent")
	case c.HostKeys.IsZero():
		return errors.New("mux: Config.HostKeys is not set: pin the server's key or name a known_hosts file")
	case c.SessionLimit < 0:
		return fmt.Errorf("mux: Config.SessionLimit is %d", c.SessionLimit)
	case c.KeepaliveInterval < 0 || c.KeepaliveTimeout < 0:
		return errors.New("mux: Config.KeepaliveInterval or KeepaliveTimeout is negative; a dead peer must be found")
	}
	return nil
}

func (c *Config) withDefaults() (*Config, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	d := *c
	d.KeepaliveInterval = cmp.Or(d.KeepaliveInterval, defaultKeepaliveInterval)
	d.KeepaliveTimeout = cmp.Or(d.KeepaliveTimeout, defaultKeepaliveTimeout)
	if d.DialNet == nil {
		d.DialNet = func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		}
	}
	d.Trace = d.Trace.withDefaults()
	return &d, nil
}
