package mux

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/mux/channel"
)

// sessionProcess is the [channel.ProcessTransport] of a process in a session channel (RFC 4254, section 6).
type sessionProcess struct {
	*channelStream
	exited chan struct{} // closed once the channel is gone and all of stderr has been delivered
}

// startSession starts cmd in a session that open provides: openSessions, or tryOpenSessions.
func (c *Conn) startSession(ctx context.Context, cmd Command, open opener) (*sessionProcess, *Process, error) {
	if err := cmd.Check(); err != nil {
		return nil, nil, err
	}
	sessions, err := open(ctx, "start", 1)
	if err != nil {
		return nil, nil, err
	}
	return sessions[0].start(ctx, cmd)
}

// start runs cmd in the session, and closes the session if that fails.
func (ch *sshChannel) start(ctx context.Context, cmd Command) (*sessionProcess, *Process, error) {
	ch.leave.Store(int64(cmd.Leave))
	if err := ch.exec(ctx, cmd); err != nil {
		ch.Close()
		return nil, nil, err
	}
	// sshd sets TCP_NODELAY at a connection's first exec. From now on it does not wait for our ACKs.
	ch.conn.nc.quickAck.Store(false)
	p := &sessionProcess{newChannelStream(ch), make(chan struct{})}
	// A process may exit before it reads the beginning of its stdin. It still counts as started, and Wait reports its
	// end.
	if _, err := p.Write(cmd.Input, ctx.Done()); errors.Is(err, channel.ErrStopped) {
		p.Close()
		return nil, nil, fmt.Errorf("start: %w", context.Cause(ctx))
	}
	go p.pumpStderr(cmd.Stderr) // not before: a caller whose Start fails does not expect more stderr
	return p, channel.NewProcess(p, ch.conn.local(), cmd), nil
}

// exec asks for a command to be run (RFC 4254, section 6.5).
func (ch *sshChannel) exec(ctx context.Context, cmd Command) error {
	line, err := shellLine(cmd)
	if err != nil {
		return err
	}
	answer := make(chan error, 1)
	spawned := ch.conn.spawn(func() {
		ok, err := ch.ssh.SendRequest("exec", true, ssh.Marshal(struct{ Command string }{line}))
		if err == nil && !ok {
			err = fmt.Errorf("start: %w: the server refused to run a command", ErrForbidden)
		} else if err != nil {
			err = ch.sendError("start", err)
		}
		answer <- err
	})
	if !spawned {
		return ch.conn.ended("start")
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return fmt.Errorf("start: %w", context.Cause(ctx))
	}
}

// pumpStderr delivers stderr to a Writer, which may be nil, until the channel ends. Wait waits for it.
func (p *sessionProcess) pumpStderr(to io.Writer) {
	defer close(p.exited)
	defer func() { <-p.gone }()
	var in readBuffer
	defer in.free()
	from := p.ssh.Stderr()
	for {
		buf := in.next()
		n, err := from.Read(buf)
		if n > 0 && to != nil {
			if _, werr := to.Write(buf[:n]); werr != nil {
				to = nil
			}
		}
		if err != nil {
			return
		}
		in.used(n)
	}
}

// Exited implements [channel.ProcessTransport].
func (p *sessionProcess) Exited() <-chan struct{} { return p.exited }

// Err implements [channel.ProcessTransport].
func (p *sessionProcess) Err() error {
	switch {
	case p.lost:
		return p.conn.ended("wait for remote process")
	case p.exit == nil:
		return &ExitError{}
	case *p.exit == ExitError{}:
		return nil
	default:
		return p.exit
	}
}

// Signal asks the server to send a signal.
func (p *sessionProcess) Signal(name string) error {
	if _, err := p.ssh.SendRequest("signal", false, ssh.Marshal(struct{ Signal string }{name})); err != nil {
		return p.sendError("signal", err)
	}
	return nil
}
