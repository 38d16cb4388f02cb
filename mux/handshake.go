package mux

import (
	"context"
	"net"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/mux/login"
)

// handshake is one login to a server, and traces its phases.
type handshake struct {
	addr  string
	cfg   *Config
	login *login.Login

	phase string    // of the dial, for the trace
	since time.Time // start of phase
}

// prepare looks up the host keys and gets the credentials before the server is contacted.
func prepare(ctx context.Context, addr string, cfg *Config) (*handshake, error) {
	start := time.Now()
	l, err := login.Prepare(ctx, login.Config{
		Addr:         addr,
		User:         cfg.User,
		Auth:         cfg.Auth,
		Credentials:  cfg.Credentials,
		AllowSHA1:    cfg.AllowSHA1,
		HostKeys:     cfg.HostKeys,
		HostKeyAlias: cfg.HostKeyAlias,
		MachineID:    cfg.MachineID,
	})
	if err != nil {
		err = cfg.dialError(ctx, addr, "prepare", "", err)
	}
	cfg.Trace.DialPhase("prepare", time.Since(start), err)
	return &handshake{addr: addr, cfg: cfg, login: l}, err
}

// run logs in over nc, which it owns.
func (h *handshake) run(ctx context.Context, nc net.Conn) (*Conn, error) {
	wrapped := newNetConn(nc)
	// The library takes no context. Closing the connection ends all its waits.
	stop := context.AfterFunc(ctx, func() { _ = wrapped.Close() })
	h.phase, h.since = "handshake", time.Now()
	cc, chans, reqs, err := ssh.NewClientConn(wrapped, h.addr, h.login.ClientConfig(ctx, h.hostKeyVerified))
	if err == nil {
		if err = h.login.Learn(ctx); err != nil {
			cc.Close()
		}
	}
	h.endPhase(err)
	if !stop() {
		if err == nil {
			cc.Close()
		}
		late := h.cfg.dialError(ctx, h.addr, "handshake", "", err)
		if h.phase == "login" && late.Hint != "" { // the stage stays, because a late login is not a refused one
			late.Hint = "the host key was accepted, but the login did not end in time: does an agent wait for its user?"
		}
		return nil, late
	}
	if err != nil {
		_ = wrapped.Close() // the handshake's error counts
		stage, hint, reason := h.login.Explain(err)
		if reason == nil {
			reason = handshakeError(err)
		}
		return nil, &DialError{Stage: stage, Addr: h.addr, User: h.cfg.User, Hint: hint, Err: reason}
	}
	if known, ok := cc.(ssh.AlgorithmsConnMetadata); ok {
		wrapped.joinPieces(known.Algorithms().Write.Cipher)
	}
	//nolint:contextcheck // the connection outlives the dial
	return newConn(wrapped, cc, chans, reqs, h.addr, h.cfg), nil
}

// hostKeyVerified traces the host key. The login follows if it was accepted.
func (h *handshake) hostKeyVerified(key ssh.PublicKey, policy string, err error) {
	h.cfg.Trace.HostKey(key, policy, err)
	if err == nil {
		h.endPhase(nil)
		h.phase, h.since = "login", time.Now()
	}
}

func (h *handshake) endPhase(err error) { h.cfg.Trace.DialPhase(h.phase, time.Since(h.since), err) }
