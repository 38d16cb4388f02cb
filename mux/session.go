package mux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/mux/channel"
)

// maxSignal bounds the name of a signal.
const maxSignal = 32

// session is a session channel (RFC 4254, section 6), and the end of its process as the server told it.
type session struct {
	*sshChannel

	mu     sync.Mutex // guards the following
	exited bool
	exit   ExitError
}

// sessionProcess is a Process in a session.
type sessionProcess struct {
	*channelStream
	session *session
	exited  chan struct{} // closed once the channel is gone and all of stderr has been delivered
}

// openSession opens a session channel, for which the caller has taken a slot. The slot is given back when the channel
// has ended.
func (c *Conn) openSession(ctx context.Context, op string) (*session, error) {
	s := &session{}
	ch, err := c.open(ctx, openSpec{
		op:      op,
		kind:    "session",
		request: s.request,
		opened:  c.sessions.opened,
		closed:  c.sessions.closed,
	})
	if err != nil {
		return nil, err
	}
	s.sshChannel = ch
	return s, nil
}

// start runs cmd in s, and closes s if it cannot.
func (s *session) start(ctx context.Context, cmd Command) (*sessionProcess, error) {
	if err := s.exec(ctx, cmd); err != nil {
		s.Close()
		return nil, err
	}
	// sshd sets TCP_NODELAY at a connection's first exec. From now on it does not wait for our ACKs.
	s.conn.nc.quickAck.Store(false)
	p := &sessionProcess{channelStream: newChannelStream(s.sshChannel), session: s, exited: make(chan struct{})}
	to := cmd.Stderr
	if to == nil {
		to = io.Discard
	}
	go p.pumpStderr(to)
	if err := p.giveInput(ctx, cmd.Input); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// process returns p, started by cmd, as a Process.
func (p *sessionProcess) process(cmd Command) *Process {
	return channel.NewProcess(p, p.conn.local(), cmd)
}

// giveInput writes the beginning of stdin, bounded by ctx. A process may exit before it reads that. It still counts as
// started, and its end is told by the Process.
func (p *sessionProcess) giveInput(ctx context.Context, input []byte) error {
	if _, err := p.Write(input, ctx.Done()); errors.Is(err, channel.ErrStopped) {
		return fmt.Errorf("start: %w", context.Cause(ctx))
	}
	return nil
}

// exec asks for a command to be run (RFC 4254, section 6.5).
func (s *session) exec(ctx context.Context, cmd Command) error {
	line, err := shellLine(cmd)
	if err != nil {
		return err
	}
	answer := make(chan error, 1)
	spawned := s.conn.spawn(func() {
		ok, err := s.ssh.SendRequest("exec", true, ssh.Marshal(struct{ Command string }{line}))
		if err == nil && !ok {
			err = fmt.Errorf("start: %w: the server refused to run a command", ErrForbidden)
		} else if err != nil {
			err = s.sendError("start", err)
		}
		answer <- err
	})
	if !spawned {
		return s.conn.ended("start")
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return fmt.Errorf("start: %w", context.Cause(ctx))
	}
}

// pumpStderr delivers stderr until the channel ends. It belongs to Wait.
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

// request keeps the process's end (RFC 4254, section 6.10).
func (s *session) request(ch *sshChannel, req *ssh.Request) {
	var exit ExitError
	switch req.Type {
	case "exit-status":
		var msg struct{ Status uint32 }
		if ssh.Unmarshal(req.Payload, &msg) != nil {
			return
		}
		exit.Status = int(msg.Status)
	case "exit-signal":
		var msg struct {
			Signal     string
			CoreDumped bool
			Message    string
			Language   string
		}
		if ssh.Unmarshal(req.Payload, &msg) != nil || msg.Signal == "" {
			return
		}
		exit.Signal = strings.ToValidUTF8(msg.Signal[:min(len(msg.Signal), maxSignal)], "?")
		exit.Message = strings.ToValidUTF8(msg.Message[:min(len(msg.Message), maxForeign)], "?")
	default:
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.exited {
		s.exited, s.exit = true, exit
		ch.exitReceived.Store(true)
	}
}

// Exited implements [channel.ProcessTransport].
func (p *sessionProcess) Exited() <-chan struct{} { return p.exited }

// Err implements [channel.ProcessTransport].
func (p *sessionProcess) Err() error {
	p.session.mu.Lock()
	exited, exit := p.session.exited, p.session.exit
	p.session.mu.Unlock()
	switch {
	case p.lost:
		return p.conn.ended("wait for remote process")
	case !exited:
		return &ExitError{}
	case exit == ExitError{}:
		return nil
	default:
		return &exit
	}
}

// Signal asks the server to send a signal.
func (p *sessionProcess) Signal(name string) error {
	if _, err := p.ssh.SendRequest("signal", false, ssh.Marshal(struct{ Signal string }{name})); err != nil {
		return p.sendError("signal", err)
	}
	return nil
}
