package mux

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
)

// Dial connects to addr (host:port), checks the server's host key and logs in. ctx bounds all of it and has no effect
// after Dial has returned. The caller closes the Conn. The error is a [*DialError]: it wraps ctx's cause if ctx ended
// the dial. A mistake in cfg is an error that names the field.
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
	nc, err := cfg.DialNet(ctx, addr)
	if err == nil && nc == nil {
		err = errors.New("Config.DialNet returned no connection and no error")
	}
	cfg.Trace.DialPhase("connect", time.Since(start), err)
	if err != nil {
		return nil, cfg.dialError(ctx, addr, "connect", connectHint(err), err)
	}
	return shake.run(ctx, nc)
}

// dialError returns err as the failure of a stage of the dial, or ctx's cause if ctx ended the dial.
func (c *Config) dialError(ctx context.Context, addr, stage, hint string, err error) *DialError {
	e := &DialError{Stage: stage, Addr: addr, User: c.User, Hint: hint, Err: err}
	if ctx.Err() != nil {
		e.Err, e.Hint = context.Cause(ctx), ""
		if errors.Is(e.Err, context.DeadlineExceeded) && stage != "prepare" {
			e.Hint = "no answer in time: is the address right, is this an SSH port, does a firewall drop packets?"
		}
	}
	return e
}

func connectHint(err error) string {
	_, noName := errors.AsType[*net.DNSError](err)
	_, refused := errors.AsType[*ssh.OpenChannelError](err)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there: is sshd running, is the port right?"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "no route to the machine"
	case noName:
		return "the name cannot be resolved"
	case refused && errors.Is(err, ErrForbidden):
		return "the jump host forbids it: see AllowTcpForwarding and PermitOpen in its sshd_config"
	case refused:
		return "the jump host cannot connect to it: is the address right as seen from there, is sshd running?"
	default:
		return ""
	}
}
