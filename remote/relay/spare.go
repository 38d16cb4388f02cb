package relay

import (
	"os"
	"slices"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/pipe"
	"github.com/stepmux/stepmux/remote/proc"
)

// spareDelay lets the serve that is starting now go first.
const spareDelay = 10 * time.Millisecond

// spares prestarts one serve for the next build, because most of the time that a serve takes to start is the start of
// its program. The spare reads its socket's path from stdin (pipe.SocketOnStdin) and goes to the next start request
// with the same command. If the command wants a secret, the build's manager sends it as stdin: it is the line after the
// path. At most one spare waits; it ends with the relay.
type spares struct {
	relay *relay

	mu      sync.Mutex      // guards the following
	command []string        // the spare's argv
	next    func() *spawned // waits for the spare's start and returns it, nil if that failed; nil if there is no spare
	timer   *time.Timer     // calls prestart
}

// socketArgument returns the index of the socket's path in the argv of a request. It returns 0 unless the request is
// for a serve of this very program, without a directory and an environment of its own.
func socketArgument(c *Command, request *wire.RelayStart) int {
	argv := request.Argv
	at := slices.Index(argv, "--socket") + 1 // of the path; other flags may follow
	if at < 4 || at == len(argv) || !slices.Equal(argv[at-3:at-1], []string{"steps", "serve"}) ||
		request.Ready != argv[at] || request.Dir != "" || len(request.Env) > 0 {
		return 0
	}
	theirs, err := os.Stat(c.program)
	if err != nil {
		return 0
	}
	ours, err := os.Stat("/proc/self/exe")
	if err != nil || !os.SameFile(theirs, ours) {
		return 0
	}
	return at
}

// serveCommand returns the argv of a request with pipe.SocketOnStdin in place of the socket's path. It returns nil
// unless the request is for a serve of this very program.
func serveCommand(c *Command, request *wire.RelayStart) []string {
	at := socketArgument(c, request)
	if at == 0 {
		return nil
	}
	argv := slices.Clone(c.argv)
	argv[at] = pipe.SocketOnStdin
	return argv
}

// take returns a prestarted serve and tells it the request's socket. It returns nil if no spare fits. In any case it
// prestarts the next one.
func (s *spares) take(c *Command, request *wire.RelayStart) *spawned {
	command := serveCommand(c, request)
	if command == nil {
		return nil
	}
	s.mu.Lock()
	var next func() *spawned
	if slices.Equal(s.command, command) {
		next, s.next = s.next, nil
	}
	if s.next == nil && s.timer == nil {
		prestarted := *c
		prestarted.argv = command
		s.timer = time.AfterFunc(spareDelay, func() { s.prestart(&prestarted) })
	}
	s.mu.Unlock()
	if next == nil {
		return nil
	}
	idle := next() // a spare that is being started is ready sooner than a new one
	if idle == nil {
		return nil
	}
	if _, err := idle.stdin.Write([]byte(request.Ready + "\n")); err != nil || idle.child.Ended() {
		idle.close() // it was killed
		return nil
	}
	return idle
}

// prestart starts a spare, unless the relay is closing.
func (s *spares) prestart(c *Command) {
	if !s.relay.beginProcess() {
		return
	}
	defer s.relay.processes.Done()
	next := sync.OnceValue(func() *spawned {
		spare, _ := s.relay.spawn(c) // if it fails, the next build starts its own serve and reports the error
		return spare
	})
	s.mu.Lock()
	s.timer, s.next, s.command = nil, next, c.argv
	s.mu.Unlock()
	next()
}

// close ends the spare by the end of its stdin. The caller has made sure that no request takes or prestarts another
// one.
func (s *spares) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		return
	}
	if idle := s.next(); idle != nil {
		idle.close()
	}
}

// spawned is a started process, with our ends of its pipes.
type spawned struct {
	child                 *proc.Child
	stdin, stdout, stderr *os.File
	lingers               bool // as in its Command
}

func (s *spawned) close() {
	s.stdin.Close()
	s.stdout.Close()
	s.stderr.Close()
}
