package mux

import "context"

// Spare is a process that was started ahead of its use, in a session that nobody else wanted. It is given
// up when anybody has to wait for a session: then its stdin ends and its session closes. [Conn.Shutdown]
// does not wait for it. It is safe for concurrent use.
type Spare struct {
	conn    *Conn
	process *Process
	channel *sshChannel
}

// StartSpare starts a process for a later [Spare.Take], and returns ErrSaturated if no session is free for
// that or somebody waits for one. ctx bounds the start only. The caller calls Take or Close.
func (c *Conn) StartSpare(ctx context.Context, cmd Command) (*Spare, error) {
	p, err := c.tryStartSession(ctx, cmd)
	if err != nil {
		return nil, err
	}
	c.exempt(p.sshChannel)
	s := &Spare{conn: c, process: p.process(cmd), channel: p.sshChannel}
	c.mu.Lock()
	if c.spares == nil {
		c.spares = make(map[*Spare]struct{})
	}
	c.spares[s] = struct{}{}
	c.mu.Unlock()
	if c.sessions.wanted() { // by one who came while it was not yet known
		s.Close()
		return nil, ErrSaturated
	}
	return s, nil
}

// Take returns the process, which from now on is the caller's as if Start had started it, or nil if it has
// ended, was given up, or was taken already.
func (s *Spare) Take() *Process {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, there := c.spares[s]; !there || s.channel.exitReceived.Load() || isDone(s.channel.gone) || c.countLocked("start") != nil {
		return nil
	}
	delete(c.spares, s)
	s.channel.exempt = false
	return s.process
}

// Close gives up the process if it was not taken. It does not wait for the process's end. Idempotent.
func (s *Spare) Close() {
	s.conn.mu.Lock()
	_, there := s.conn.spares[s]
	delete(s.conn.spares, s)
	s.conn.mu.Unlock()
	if there {
		s.process.Close()
	}
}

// giveUpSpares closes the processes that nobody has taken: somebody waits for their sessions.
func (c *Conn) giveUpSpares() {
	c.mu.Lock()
	spares := c.spares
	c.spares = nil
	c.mu.Unlock()
	for s := range spares {
		s.process.Close()
	}
}
