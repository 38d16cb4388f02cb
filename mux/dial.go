package mux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"golang.org/x/crypto/ssh"
)

// Dial connects to addr (host:port), checks the server's host key and logs in. ctx bounds all of
// it and means nothing after Dial has returned. The caller closes the Conn. The error is a
// [*DialError], which wraps ctx's cause when ctx ended the dial, or says what is wrong with cfg.
func Dial(ctx context.Context, addr string, cfg *Config) (*Conn, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	nc, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		if ctx.Err() != nil {
			return nil, dialCause(ctx, addr, cfg, "connect")
		}
		return nil, &DialError{Stage: "connect", Addr: addr, User: cfg.User, Err: err, Hint: connectHint(err)}
	}
	return NewConn(ctx, nc, addr, cfg)
}

// NewConn logs in over nc, a connection to the server that is known as addr. It owns nc from here
// on, also when it fails. ctx and the error are as for Dial.
func NewConn(ctx context.Context, nc net.Conn, addr string, cfg *Config) (*Conn, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		nc.Close()
		return nil, err
	}
	wrapped := newNetConn(nc)
	// The library has no context: a connection that is closed under it ends every wait.
	stop := context.AfterFunc(ctx, func() { _ = wrapped.Close() })

	var shown, refused error // by the host key check, which the handshake calls on this goroutine or waits for
	config := cfg.clientConfig(addr, func(name string, remote net.Addr, key ssh.PublicKey) error {
		shown = errHostKeyShown
		refused = cfg.HostKeys.verify(name, remote, key)
		return refused
	})
	cc, chans, reqs, err := ssh.NewClientConn(wrapped, addr, config)
	if !stop() {
		if err == nil {
			cc.Close()
		}
		<-wrapped.done
		return nil, dialCause(ctx, addr, cfg, "handshake")
	}
	if err != nil {
		_ = wrapped.Close() // the handshake's error counts
		<-wrapped.done
		return nil, handshakeError(addr, cfg, err, shown != nil, refused)
	}
	return newConn(wrapped, cc, chans, reqs, addr, cfg), nil
}

// errHostKeyShown marks that the handshake came as far as the host key.
var errHostKeyShown = errors.New("host key shown")

// dialCause reports that ctx ended the dial at stage.
func dialCause(ctx context.Context, addr string, cfg *Config, stage string) error {
	e := &DialError{Stage: stage, Addr: addr, User: cfg.User, Err: context.Cause(ctx)}
	if errors.Is(e.Err, context.DeadlineExceeded) {
		e.Hint = "no answer in time: is the address right, is this an SSH port, does a firewall drop packets?"
	}
	return e
}

// handshakeError tells the stages apart: the library's errors are text only.
func handshakeError(addr string, cfg *Config, err error, sawHostKey bool, refused error) error {
	e := &DialError{Stage: "handshake", Addr: addr, User: cfg.User, Err: err}
	text := err.Error()
	switch {
	case refused != nil:
		e.Stage, e.Err = "host key", refused
	case strings.Contains(text, "unable to authenticate"):
		e.Stage = "login"
		e.Hint = fmt.Sprintf("the server refused %s for user %s: is it in authorized_keys, is the user right?", authNames(cfg.Auth), cfg.User)
	case sawHostKey && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)):
		e.Hint = "the server closed the connection during login: see its log"
	case sawHostKey:
		e.Hint = "after the host key was accepted: see the server's log"
	case strings.Contains(text, "no common algorithm"):
		e.Hint = "client and server share no algorithm: see the server's KexAlgorithms, Ciphers, HostKeyAlgorithms"
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		e.Hint = "the server closed the connection at once: MaxStartups or a ban may be at work, or this is not an SSH port"
	default:
		e.Hint = "is " + addr + " an SSH port?"
	}
	return e
}

func authNames(auths []Auth) string {
	names := make([]string, len(auths))
	for i, a := range auths {
		names[i] = a.String()
	}
	return strings.Join(names, ", ")
}

func connectHint(err error) string {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there: is sshd running, is the port right?"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "no route to the machine"
	}
	if dns := (*net.DNSError)(nil); errors.As(err, &dns) {
		return "the name cannot be resolved"
	}
	return ""
}
