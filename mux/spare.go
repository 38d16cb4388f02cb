package mux

import (
	"context"

	"github.com/stepmux/stepmux/internal/pause"
)

// Spare is a prestarted process in a session that was free. It is given up as soon as a caller needs a session: its
// stdin ends and its session closes. [Conn.Shutdown] does not wait for it. It is safe for concurrent use.
type Spare struct {
	process *Process
	channel *sshChannel
}

// StartSpare starts a process for a later [Spare.Take]. It returns ErrSaturated if no session is free or a caller
// waits for one. ctx bounds the start only. The caller calls Take or Close.
func (c *Conn) StartSpare(ctx context.Context, cmd Command) (*Spare, error) {
	p, process, err := c.startSession(ctx, cmd, c.tryOpenSessions)
	if err != nil {
		return nil, err
	}
	c.exempt(p.sshChannel)
	s := &Spare{process, p.sshChannel}
	c.mu.Lock()
	if c.spares == nil {
		c.spares = make(map[*Spare]struct{})
	}
	c.spares[s] = struct{}{}
	c.mu.Unlock()
	if c.sessions.wanted() { // since before the spare was known
		s.Close()
		return nil, ErrSaturated
	}
	return s, nil
}

// Take returns the process, which then belongs to the caller as if Start had started it. It returns nil if the
// process has ended, was given up, or was taken before.
func (s *Spare) Take() *Process {
	c := s.channel.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	_, there := c.spares[s]
	if !there || s.channel.exitReceived.Load() || pause.Done(s.channel.gone) || c.countLocked("start") != nil {
		return nil
	}
	delete(c.spares, s)
	s.channel.exempt = false
	return s.process
}

// Close gives up the process if it was not taken. It does not wait for the process's end. Idempotent.
func (s *Spare) Close() {
	c := s.channel.conn
	c.mu.Lock()
	_, there := c.spares[s]
	delete(c.spares, s)
	c.mu.Unlock()
	if there {
		s.process.Close()
	}
}

// giveUpSpares closes the spare processes, because a caller waits for a session.
func (c *Conn) giveUpSpares() {
	c.mu.Lock()
	spares := c.spares
	c.spares = nil
	c.mu.Unlock()
	for s := range spares {
		s.process.Close()
	}
}
