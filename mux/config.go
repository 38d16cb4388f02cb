package mux

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/crypto/ssh"
)

const (
	defaultKeepaliveInterval = 15 * time.Second
	defaultKeepaliveTimeout  = 15 * time.Second
)

// Config says how to connect. Dial and NewConn copy and check it.
type Config struct {
	// User is the account on the VM. Required.
	User string
	// Auth holds the ways to log in: all keys are tried, in order, then the first password. Required.
	// KeyFile, Key, Agent and Password make them.
	Auth []Auth
	// HostKeys decides which server may answer. Required: there is no insecure default.
	// PinnedHostKeys and KnownHosts make one.
	HostKeys HostKeys

	// KeepaliveInterval is how long the peer may be silent before it is asked for a sign of life.
	// If zero, 15s.
	KeepaliveInterval time.Duration
	// KeepaliveTimeout is how long the answer may take. A dead peer is found, and the connection
	// closed, within KeepaliveInterval + KeepaliveTimeout. If zero, 15s.
	KeepaliveTimeout time.Duration

	// SessionLimit is the server's MaxSessions, the sessions it allows on one connection. If zero,
	// it is learned from the server's first refusal.
	SessionLimit int
}

func (c *Config) withDefaults() (*Config, error) {
	if c == nil {
		return nil, errors.New("mux: Config is nil")
	}
	d := *c
	switch {
	case d.User == "":
		return nil, errors.New("mux: Config.User is empty")
	case len(d.Auth) == 0:
		return nil, errors.New("mux: Config.Auth is empty: name a private key, a password or an agent")
	case d.HostKeys.verify == nil:
		return nil, errors.New("mux: Config.HostKeys is not set: pin the server's key or name a known_hosts file")
	case d.SessionLimit < 0:
		return nil, fmt.Errorf("mux: Config.SessionLimit is %d", d.SessionLimit)
	case d.KeepaliveInterval < 0 || d.KeepaliveTimeout < 0:
		return nil, errors.New("mux: Config.KeepaliveInterval or KeepaliveTimeout is negative; a dead peer must be found")
	}
	if d.KeepaliveInterval == 0 {
		d.KeepaliveInterval = defaultKeepaliveInterval
	}
	if d.KeepaliveTimeout == 0 {
		d.KeepaliveTimeout = defaultKeepaliveTimeout
	}
	return &d, nil
}

// clientConfig returns the library's form of c for addr.
func (c *Config) clientConfig(addr string, hostKey ssh.HostKeyCallback) *ssh.ClientConfig {
	return &ssh.ClientConfig{
		User:              c.User,
		Auth:              authMethods(c.Auth),
		HostKeyAlgorithms: c.HostKeys.algorithms(addr),
		HostKeyCallback:   hostKey,
		ClientVersion:     "SSH-2.0-stepmux",
	}
}
