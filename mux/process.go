package mux

import (
	"context"
	"fmt"
	"io"
	"sync"

	"golang.org/x/crypto/ssh"
)

// Command is what to start on the VM.
type Command struct {
	// Line is the command line, which sshd hands to the user's login shell: the caller quotes it.
	Line string
	// Stderr receives what the process writes to its standard error, from one goroutine, as it
	// comes. If nil it is discarded. A Stderr that blocks stalls the process's stdout too: both share
	// the channel's window (RFC 4254, section 5.2). Its errors are ignored, the rest is discarded.
	Stderr io.Writer
}

// Process is a process on the VM. As a [Stream] it writes to the process's stdin and reads its
// stdout; CloseWrite ends its stdin.
//
// Close closes the channel, which the process sees as the end of its stdin and of its readers; it is
// not killed, for SSH has no such request. What must end with its channel watches its stdin.
type Process struct {
	*Stream
	session *session
	exited  chan struct{} // closed once the channel is gone and all of stderr has been delivered
}

// session is a session channel (RFC 4254, section 6) and what the server said of its process's end.
type session struct {
	*channel

	mu     sync.Mutex // guards the following
	exited bool
	exit   ExitError
}

// Start starts a process. It waits for a session, bounded by ctx, when the server allows no more at
// the moment. ctx means nothing to the process once it runs. The caller calls Wait, Close, or both.
func (c *Conn) Start(ctx context.Context, cmd Command) (*Process, error) {
	sessions, err := c.openSessions(ctx, "start", 1)
	if err != nil {
		return nil, err
	}
	return sessions[0].start(ctx, cmd)
}

// TryStart is Start that returns ErrSaturated instead of waiting for a session.
func (c *Conn) TryStart(ctx context.Context, cmd Command) (*Process, error) {
	if lost := c.alive("start"); lost != nil {
		return nil, lost
	}
	if !c.sessions.tryAcquire(1) {
		return nil, ErrSaturated
	}
	s, err := c.openSession(ctx, "start")
	if isRefusal(err) {
		c.sessions.refuse()
		return nil, ErrSaturated
	}
	if err != nil {
		return nil, err
	}
	return s.start(ctx, cmd)
}

// openSession opens one session channel, for which the caller has taken a slot; the slot is given
// back when the channel is gone.
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
	s.channel = ch
	return s, nil
}

// start runs cmd in s, and closes s if it cannot.
func (s *session) start(ctx context.Context, cmd Command) (*Process, error) {
	if err := s.exec(ctx, cmd.Line); err != nil {
		s.Close()
		return nil, err
	}
	// sshd sets TCP_NODELAY at a connection's first exec; from now on it does not wait for our ACKs.
	s.conn.nc.quickAck.Store(false)
	p := &Process{Stream: newStream(s.channel), session: s, exited: make(chan struct{})}
	to := cmd.Stderr
	if to == nil {
		to = io.Discard
	}
	go p.pumpStderr(to)
	return p, nil
}

// exec asks for a command to be run (RFC 4254, section 6.5).
func (s *session) exec(ctx context.Context, line string) error {
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
func (p *Process) pumpStderr(to io.Writer) {
	defer close(p.exited)
	defer func() { <-p.gone }()
	buf := chunks.Get().(*[chunkSize]byte)
	defer chunks.Put(buf)
	from := p.ssh.Stderr()
	for {
		n, err := from.Read(buf[:])
		if n > 0 && to != nil {
			if _, werr := to.Write(buf[:n]); werr != nil {
				to = nil
			}
		}
		if err != nil {
			return
		}
	}
}

// request takes note of the process's end (RFC 4254, section 6.10).
func (s *session) request(ch *channel, req *ssh.Request) {
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
		exit.Signal, exit.Message = msg.Signal, msg.Message
	default:
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.exited {
		s.exited, s.exit = true, exit
		ch.bye.Store(true)
	}
}

// Wait waits until the process has ended, its channel is closed and all of stderr is delivered. It
// returns nil for exit status 0, an [*ExitError] for any other end, a [*ConnError] when the
// connection was lost before the server told, and ctx's cause when ctx ends first (the process goes
// on). It may be called again, and by several. Unread stdout may hold the process up.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.exited:
		return p.Err()
	case <-ctx.Done():
		return fmt.Errorf("wait for remote process: %w", context.Cause(ctx))
	}
}

// Exited returns a channel that is closed when Wait would return.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Err returns what Wait does, once Exited is closed; nil before.
func (p *Process) Err() error {
	select {
	case <-p.exited:
	default:
		return nil
	}
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

// Signal asks the server to send a signal, named without "SIG" as in "TERM" (RFC 4254, section 6.9).
// OpenSSH ignores it for root logins and without saying so: do not rely on it.
func (p *Process) Signal(name string) error {
	if _, err := p.ssh.SendRequest("signal", false, ssh.Marshal(struct{ Signal string }{name})); err != nil {
		return p.sendError("signal", err)
	}
	return nil
}
