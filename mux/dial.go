package mux

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
)

// Dial connects to addr (host:port), checks the server's host key and logs in. ctx bounds all of
// it and means nothing after Dial has returned. The caller closes the Conn. The error is a
// [*DialError], which wraps ctx's cause if ctx ended the dial, or names the mistake in cfg.
func Dial(ctx context.Context, addr string, cfg *Config) (*Conn, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	shake, err := prepare(ctx, addr, cfg)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	nc, err := cfg.dialNet(ctx, addr)
	cfg.Trace.DialPhase("connect", time.Since(start), err)
	if err != nil {
		if ctx.Err() != nil {
			return nil, dialCause(ctx, addr, cfg, "connect")
		}
		return nil, &DialError{Stage: "connect", Addr: addr, User: cfg.User, Err: err, Hint: connectHint(err)}
	}
	return shake.run(ctx, nc)
}

func (c *Config) dialNet(ctx context.Context, addr string) (net.Conn, error) {
	if c.DialNet != nil {
		return c.DialNet(ctx, addr)
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
}

// dialCause reports that ctx ended the dial at stage.
func dialCause(ctx context.Context, addr string, cfg *Config, stage string) error {
	e := &DialError{Stage: stage, Addr: addr, User: cfg.User, Err: context.Cause(ctx)}
	if errors.Is(e.Err, context.DeadlineExceeded) && stage != "prepare" {
		e.Hint = "no answer in time: is the address right, is this an SSH port, does a firewall drop packets?"
	}
	return e
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
	refusal := (*ssh.OpenChannelError)(nil)
	switch {
	case !errors.As(err, &refusal):
		return ""
	case errors.Is(err, ErrForbidden):
		return "the jump host forbids it: see AllowTcpForwarding and PermitOpen in its sshd_config"
	default:
		return "the jump host cannot connect to it: is the address right as seen from there, is sshd running?"
	}
}
