package mux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
)

// login is one login to a server.
type login struct {
	addr    string
	cfg     *Config
	auth    []Auth
	inquiry *inquiry

	shown   bool      // the handshake came as far as the host key
	refused error     // by the host key check
	phase   string    // of the dial, for the trace
	since   time.Time // when it began
	keys    int       // to log in with
	trouble error     // with others
}

// prepare finds out what is needed before the server is reached, whose patience with a login is short: what
// is known of its host key, and the credentials.
func prepare(ctx context.Context, addr string, cfg *Config) (_ *login, err error) {
	l := &login{addr: addr, cfg: cfg, auth: cfg.Auth}
	start := time.Now()
	defer func() { cfg.Trace.dialPhase("prepare", time.Since(start), err) }()
	fail := func(err error) error {
		if ctx.Err() != nil {
			return dialCause(ctx, addr, cfg, "prepare")
		}
		return &DialError{Stage: "prepare", Addr: addr, User: cfg.User, Err: err}
	}
	if l.inquiry, err = cfg.HostKeys.look(ctx, cfg.server(addr)); err != nil {
		return nil, fail(err)
	}
	if cfg.Credentials != nil {
		more, err := cfg.Credentials(ctx)
		if err != nil {
			return nil, fail(fmt.Errorf("get credentials: %w", err))
		}
		l.auth = slices.Concat(more, cfg.Auth)
	}
	if len(l.auth) == 0 {
		return nil, fail(errors.New("get credentials: there are none"))
	}
	return l, nil
}

// run logs in over nc, which it owns.
func (l *login) run(ctx context.Context, nc net.Conn) (*Conn, error) {
	wrapped := newNetConn(nc)
	// The library has no context: a connection that is closed under it ends every wait.
	stop := context.AfterFunc(ctx, func() { _ = wrapped.Close() })
	l.phase, l.since = "handshake", time.Now()
	cc, chans, reqs, err := ssh.NewClientConn(wrapped, l.addr, l.clientConfig(ctx))
	if err == nil {
		if err = l.inquiry.learn(ctx); err != nil {
			l.refused = err
			cc.Close()
		}
	}
	l.cfg.Trace.dialPhase(l.phase, time.Since(l.since), err)
	if !stop() {
		if err == nil {
			cc.Close()
		}
		<-wrapped.done
		return nil, dialCause(ctx, l.addr, l.cfg, "handshake")
	}
	if err != nil {
		_ = wrapped.Close() // the handshake's error counts
		<-wrapped.done
		return nil, l.failed(err)
	}
	return newConn(wrapped, cc, chans, reqs, l.addr, l.cfg), nil
}

// clientConfig returns the library's form of the login. What it calls, it calls on this goroutine or waits
// for; only the check of the host key is called later too, with each new exchange of keys.
func (l *login) clientConfig(ctx context.Context) *ssh.ClientConfig {
	config := &ssh.ClientConfig{
		User:              l.cfg.User,
		Auth:              authMethods(ctx, l.auth, l.cfg.AllowSHA1, func(keys int, err error) { l.keys, l.trouble = keys, err }),
		HostKeyAlgorithms: l.inquiry.algorithms(l.cfg.AllowSHA1),
		HostKeyCallback: func(_ string, remote net.Addr, key ssh.PublicKey) error {
			err := l.inquiry.check(ctx, remote, key)
			if !l.shown {
				l.shown, l.refused = true, err
				l.judged(key, err)
			}
			return err
		},
		ClientVersion: "SSH-2.0-stepmux",
	}
	config.KeyExchanges = ssh.SupportedAlgorithms().KeyExchanges
	if l.cfg.AllowSHA1 {
		config.KeyExchanges = append(config.KeyExchanges, ssh.InsecureAlgorithms().KeyExchanges...)
	}
	return config
}

// judged tells the trace of the host key, with which the handshake is over.
func (l *login) judged(key ssh.PublicKey, err error) {
	l.cfg.Trace.hostKey(key, l.inquiry.by.policy, err)
	if err == nil {
		l.cfg.Trace.dialPhase(l.phase, time.Since(l.since), nil)
		l.phase, l.since = "login", time.Now()
	}
}

// failed says why the login failed, and tells the stages apart: the library's errors are text only.
func (l *login) failed(err error) error {
	text := err.Error()
	e := &DialError{Stage: "handshake", Addr: l.addr, User: l.cfg.User, Err: shorten(err)}
	switch {
	case l.refused != nil:
		e.Stage, e.Err = "host key", l.refused
	case l.trouble != nil && l.keys == 0:
		e.Stage, e.Err = "login", l.trouble
		e.Hint = "there is no key to log in with"
	case strings.Contains(text, "unable to authenticate"):
		e.Stage = "login"
		e.Hint = fmt.Sprintf("the server refused %s for user %s: is it in authorized_keys, is the user right?", authNames(l.auth), l.cfg.User)
		if l.trouble != nil {
			e.Hint += " " + l.trouble.Error()
		}
	case l.shown && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)):
		e.Hint = "the server closed the connection during login: see its log"
	case l.shown:
		e.Hint = "after the host key was accepted: see the server's log"
	case strings.Contains(text, "no common algorithm"):
		e.Hint = "client and server share no algorithm: see the server's KexAlgorithms, Ciphers, HostKeyAlgorithms"
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		e.Hint = "the server closed the connection at once: MaxStartups or a ban may be at work, or this is not an SSH port"
	default:
		e.Hint = "is " + l.addr + " an SSH port?"
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
