package remote

import (
	"os"
	"slices"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/wire"
)

// spareDelay keeps the start of a spare out of the way of the serve that was started just now.
const spareDelay = 10 * time.Millisecond

// spares keeps one serve started ahead: what takes long about a serve is the start of its program, and the
// next build's can begin before that build. It waits for its socket's path on stdin (SocketOnStdin) and is
// given to the next start that asks for the same command. If its command wants a secret, that is the build's: it
// is what the manager sends for stdin, and so the line after the path. One at most waits; it ends with the relay.
type spares struct {
	relay *relay

	mu      sync.Mutex // guards the following
	command []string   // of idle: its argv
	idle    *spawned   // nil: none
	timer   *time.Timer
	coming  chan struct{} // not nil while one is being started; closed when that is done
}

// serveCommand returns the argv of a request with SocketOnStdin for the path of its socket, if it is for a serve of
// this very program to which nothing is peculiar but that path.
func serveCommand(c *relayCommand, request *wire.RelayStart) []string {
	argv := slices.Clone(request.Argv)
	at := len(argv) - 1 // of the path
	if at > 0 && argv[at] == "--secret-stdin" {
		at--
	}
	if at < 4 || !slices.Equal(argv[at-3:at], []string{"steps", "serve", "--socket"}) ||
		request.Ready != argv[at] || request.Dir != "" || len(request.Env) > 0 {
		return nil
	}
	argv[at] = SocketOnStdin
	theirs, err := os.Stat(c.program)
	if err != nil {
		return nil
	}
	ours, err := os.Stat("/proc/self/exe")
	if err != nil || !os.SameFile(theirs, ours) {
		return nil
	}
	return argv
}

// take returns a serve that was started ahead and has been told the request's socket, nil if there is none.
// It sees to the next.
func (s *spares) take(c *relayCommand, request *wire.RelayStart) *spawned {
	command := serveCommand(c, request)
	if command == nil {
		return nil
	}
	s.mu.Lock()
	for s.coming != nil { // it takes no longer than one of our own would
		coming := s.coming
		s.mu.Unlock()
		<-coming
		s.mu.Lock()
	}
	idle := s.idle
	if !slices.Equal(s.command, command) {
		idle = nil
	}
	if idle != nil {
		s.idle = nil
	}
	if s.idle == nil && s.timer == nil {
		ahead := *c
		ahead.argv = command
		s.timer = time.AfterFunc(spareDelay, func() { s.prepare(&ahead, command) })
	}
	s.mu.Unlock()
	if idle == nil {
		return nil
	}
	if _, err := idle.stdin.Write([]byte(request.Ready + "\n")); err != nil || idle.child.ended() {
		idle.close() // it was killed
		return nil
	}
	return idle
}

// prepare starts a spare, unless the relay is about to end.
func (s *spares) prepare(c *relayCommand, command []string) {
	if !s.relay.beginProcess() {
		return
	}
	defer s.relay.processes.Done()
	coming := make(chan struct{})
	defer close(coming)
	s.mu.Lock()
	s.coming = coming
	s.mu.Unlock()
	ahead, err := s.relay.spawn(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer, s.coming = nil, nil
	if err != nil {
		return // the next build starts its own, and says what was wrong
	}
	if s.idle != nil {
		s.idle.close()
	}
	s.idle, s.command = ahead, command
}

// close gives up the spare, which ends with its stdin. Nothing is taken or prepared any more.
func (s *spares) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idle != nil {
		s.idle.close()
		s.idle = nil
	}
}

// spawned is a process that was started, with our ends of its pipes.
type spawned struct {
	child                 *child
	stdin, stdout, stderr *os.File
}

func (s *spawned) close() {
	s.stdin.Close()
	s.stdout.Close()
	s.stderr.Close()
}
