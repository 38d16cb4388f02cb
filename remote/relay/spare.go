package relay

import (
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/pipe"
	"github.com/stepmux/stepmux/remote/proc"
)

const (
	// spareDelay lets the serve that is starting now go first.
	spareDelay = 10 * time.Millisecond
	// keepTime is how long serves that have ended their builds are kept, if another one waits.
	keepTime = 2 * time.Second
	// maxKept bounds their number.
	maxKept = 16
)

// spares are the serves that wait for the next builds, because most of the time that a serve takes to start is the
// start of its program. They end with the relay.
//
// A serve that has ended its build is kept if it offers that (pipe.Control). If none waits, one is prestarted. Either
// reads its socket's path from stdin (pipe.SocketOnStdin), and goes to the next start request with the same command. If
// the command wants a secret, the build's manager sends it as stdin: it is the line after the path. When no build has
// come for a while, one serve is left.
type spares struct {
	relay *relay

	mu      sync.Mutex      // guards the following
	command []string        // the argv of the prestarted one
	next    func() *spawned // waits for its start and returns it, nil if that failed; nil if there is none
	timer   *time.Timer     // calls prestart
	kept    []kept          // in the order in which they have ended their builds
	trimmer *time.Timer     // calls trim; nil if that is not needed
}

// kept is a serve that has ended its build.
type kept struct {
	*spawned
	until time.Time
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

// serveCommand returns the command of a request with pipe.SocketOnStdin in place of the socket's path, and with the
// word that the serve may offer itself for another build. It returns nil unless the request is for a serve of this very
// program.
func serveCommand(c *Command, request *wire.RelayStart) *Command {
	at := socketArgument(c, request)
	if at == 0 {
		return nil
	}
	serve := *c
	serve.argv = slices.Clone(c.argv)
	serve.argv[at] = pipe.SocketOnStdin
	serve.argv, serve.reuse = append(serve.argv, "--reuse"), true
	return &serve
}

// take returns a serve that waits, and gives it the build with this socket. It returns nil if none fits. In any case it
// sees to it that the next build finds one.
func (s *spares) take(c *Command, socket string) *spawned {
	for {
		idle := s.remove(c)
		if idle == nil {
			return nil
		}
		if build := s.relay.assign(idle, socket); build != nil {
			return build
		}
	}
}

// remove takes a serve with the command out of the list, the one that has waited least: its memory is warm.
func (s *spares) remove(c *Command) *spawned {
	s.mu.Lock()
	var idle *spawned
	for i, k := range slices.Backward(s.kept) {
		if slices.Equal(k.argv, c.argv) {
			idle, s.kept = k.spawned, slices.Delete(s.kept, i, i+1)
			break
		}
	}
	var next func() *spawned
	if idle == nil && slices.Equal(s.command, c.argv) {
		next, s.next = s.next, nil
	}
	if s.next == nil && s.timer == nil && !s.keepsLocked(c) {
		s.timer = time.AfterFunc(spareDelay, func() { s.prestart(c) })
	}
	s.mu.Unlock()
	if next != nil {
		return next() // a spare that is being started is ready sooner than a new one
	}
	return idle
}

func (s *spares) keepsLocked(c *Command) bool {
	return slices.ContainsFunc(s.kept, func(k kept) bool { return slices.Equal(k.argv, c.argv) })
}

// prestart starts a spare, unless the relay is closing or another serve waits by now.
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
	s.timer = nil
	if s.keepsLocked(c) {
		s.mu.Unlock()
		return
	}
	s.next, s.command = next, c.argv
	s.trimLaterLocked()
	s.mu.Unlock()
	next()
}

// keep keeps a serve that has ended its build for another one. The caller has begun a process, see beginProcess.
func (s *spares) keep(idle *spawned) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.kept) == maxKept {
		s.relay.discard(s.kept[0].spawned)
		s.kept = slices.Delete(s.kept, 0, 1)
	}
	s.kept = append(s.kept, kept{idle, time.Now().Add(keepTime)})
	s.trimLaterLocked()
}

// trim ends the serves whose time has passed, but keeps the last one that waits.
func (s *spares) trim() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trimmer = nil
	for s.hasMoreLocked() && !s.kept[0].until.After(time.Now()) {
		s.relay.discard(s.kept[0].spawned)
		s.kept = slices.Delete(s.kept, 0, 1)
	}
	s.trimLaterLocked()
}

// hasMoreLocked reports whether a serve is kept besides one that waits.
func (s *spares) hasMoreLocked() bool { return len(s.kept) > 1 || len(s.kept) == 1 && s.next != nil }

// trimLaterLocked has trim called when the time of the first serve is over, if that one may be ended.
func (s *spares) trimLaterLocked() {
	if s.trimmer == nil && s.hasMoreLocked() {
		s.trimmer = time.AfterFunc(time.Until(s.kept[0].until), s.trim)
	}
}

// close ends the serves by the end of their files. The caller has made sure that no request takes, keeps or prestarts
// another one, and kills all processes then.
func (s *spares) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.trimmer != nil {
		s.trimmer.Stop() // a call under way finds nothing to end
	}
	for _, k := range s.kept {
		k.close()
	}
	s.kept = nil
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
	argv                  []string
	stdin, stdout, stderr *os.File
	control               *control // nil if it cannot be given another build
	lingers               bool     // as in its Command
}

func (s *spawned) close() {
	s.stdin.Close()
	s.stdout.Close()
	s.stderr.Close()
	s.control.close()
}

// control is our end of the socket to a serve (pipe.ControlPair).
type control struct{ fd int }

func (c *control) close() {
	if c != nil {
		_ = unix.Close(c.fd)
	}
}

// assign gives a serve that waits the build with this socket. It returns nil, and ends the serve, if it does not take
// it: it was killed or stopped.
func (r *relay) assign(idle *spawned, socket string) *spawned {
	info, err := proc.ReadInfo(idle.child.PID())
	if err == nil && !info.Stopped && !info.Ended && !idle.child.Ended() {
		if idle.stdin == nil {
			err = idle.reopen()
		}
		if err == nil {
			_, err = idle.stdin.Write([]byte(socket + "\n"))
		}
		if err == nil {
			return idle
		}
	}
	r.discard(idle)
	return nil
}

// reopen gives a serve that waits for its next build new pipes.
func (s *spawned) reopen() error {
	ours, theirs, err := stdioPipes()
	if err != nil {
		return err
	}
	defer closeAll(theirs[:])
	if err := pipe.SendBuild(s.control.fd, theirs); err != nil {
		closeAll(ours[:])
		return err
	}
	s.stdin, s.stdout, s.stderr = pipeFile(ours[0]), pipeFile(ours[1]), pipeFile(ours[2])
	return nil
}

// discard ends a serve that has no build.
func (r *relay) discard(idle *spawned) {
	idle.close()
	r.children.Signal(idle.child, unix.SIGKILL) // it has nothing to clean up
}
