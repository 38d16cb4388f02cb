package embeddedvm

import (
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

// session is one session channel (RFC 4254, section 6): at most one command.
type session struct {
	conn *conn
	ch   ssh.Channel
	proc *process // once started

	// answering is held from a request until its reply, and while we close the channel: the reply to a signal must come
	// before the end of the process that it killed.
	answering sync.Mutex
}

// openSession accepts a session if the connection has a slot left.
func (c *conn) openSession(nch ssh.NewChannel) {
	if !reserve(&c.sessions, c.server.config.MaxSessions) {
		reject(nch, ssh.ConnectionFailed)
		return
	}
	ch, requests, err := nch.Accept()
	if err != nil {
		c.sessions.Add(-1)
		return // the connection is ending
	}
	c.server.running.Go(func() {
		s := &session{conn: c, ch: ch}
		s.serve(requests)
		c.sessions.Add(-1)
	})
}

// serve answers the client's requests until the channel is closed. Then it holds the slot until the process has exited,
// however long that takes.
func (s *session) serve(requests <-chan *ssh.Request) {
	for req := range requests {
		s.answer(req)
	}
	if s.proc != nil {
		s.proc.closeOutput()
		<-s.proc.exited
	}
	_ = s.ch.Close() // an error means it is closed
}

// answer executes a request and replies.
func (s *session) answer(req *ssh.Request) {
	s.answering.Lock()
	defer s.answering.Unlock()
	ok := false
	switch req.Type {
	case "exec":
		ok = s.exec(req)
	case "signal":
		ok = s.signal(req.Payload)
	}
	_ = req.Reply(ok, nil) // an error means the channel is ending
	if ok && req.Type == "exec" {
		s.attach()
	}
}

// exec starts the command of an "exec" request (RFC 4254, section 6.5).
func (s *session) exec(req *ssh.Request) bool {
	var msg struct{ Command string }
	if s.proc != nil || ssh.Unmarshal(req.Payload, &msg) != nil {
		return false
	}
	proc, err := startProcess(s.conn.server.config, s.conn.addressEnv(), msg.Command)
	if err != nil {
		return false
	}
	s.conn.server.groups.add(proc)
	s.proc = proc
	return true
}

// attach connects the process's stdio with the channel and reports the exit. The client already has the reply that the
// process was started.
func (s *session) attach() {
	p, run := s.proc, &s.conn.server.running
	run.Go(func() { p.feed(s.conn.ctx, s.ch) })
	run.Go(func() {
		var output sync.WaitGroup
		output.Go(func() { p.forward(s.ch, p.stdout) })
		output.Go(func() { p.forward(s.ch.Stderr(), p.stderr) })
		name, payload := p.wait()
		s.conn.server.groups.exited(p)
		// These fail only if the channel is closed.
		_, _ = s.ch.SendRequest(name, false, payload)
		// Not before output is done: x/crypto's CloseWrite must not run beside a Write. As with sshd, a
		// background process that holds the output keeps the channel open.
		output.Wait()
		s.answering.Lock()
		defer s.answering.Unlock()
		_ = s.ch.CloseWrite()
		_ = s.ch.Close()
	})
}

// signal sends the signal of a "signal" request (RFC 4254, section 6.9) to the command's process group.
func (s *session) signal(payload []byte) bool {
	var msg struct{ Name string }
	if s.proc == nil || ssh.Unmarshal(payload, &msg) != nil {
		return false
	}
	return slices.Contains(signals, msg.Name) && s.proc.kill(unix.SignalNum("SIG"+msg.Name))
}

// addressEnv returns the variables by which sshd describes the connection to a command.
func (c *conn) addressEnv() []string {
	remoteHost, remotePort, err := net.SplitHostPort(c.nc.RemoteAddr().String())
	if err != nil {
		return nil
	}
	localHost, localPort, err := net.SplitHostPort(c.nc.LocalAddr().String())
	if err != nil {
		return nil
	}
	return []string{
		"SSH_CLIENT=" + remoteHost + " " + remotePort + " " + localPort,
		"SSH_CONNECTION=" + remoteHost + " " + remotePort + " " + localHost + " " + localPort,
	}
}

// signals are those of RFC 4254, section 6.10.
var signals = []string{
	"ABRT", "ALRM", "FPE", "HUP", "ILL", "INT", "KILL", "PIPE", "QUIT", "SEGV", "TERM", "USR1", "USR2",
}

// signalName returns the name of sig for an exit-signal request. Like sshd it has one name for all other signals.
func signalName(sig syscall.Signal) string {
	if name := strings.TrimPrefix(unix.SignalName(sig), "SIG"); slices.Contains(signals, name) {
		return name
	}
	return "SIG@openssh.com"
}
