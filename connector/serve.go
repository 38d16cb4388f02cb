package connector

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/relay"
)

// signalNumbers holds the numbers of the signals SSH names (RFC 4254, section 6.10), as Linux has
// them.
var signalNumbers = map[string]syscall.Signal{
	"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "ABRT": 6, "FPE": 8, "KILL": 9,
	"USR1": 10, "SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15,
}

// serve is a build's step runner on the VM.
type serve struct {
	process *mux.Process
	stderr  *serveStderr
	asked   string   // the socket path it was given
	socket  string   // the one it told; set before ready is
	runner  []string // its command, for messages
	ready   atomic.Bool
}

// copyStdout passes serve's stdout on to the log, to its end. serve has nothing to say there, a login
// shell may.
func (s *serve) copyStdout(log *remarks) {
	defer log.flush()
	buf := make([]byte, 4<<10)
	for {
		n, err := s.process.Read(buf)
		log.write(buf[:n])
		if err != nil {
			return
		}
	}
}

// awaitReady waits for the ready marker. life ends with serve.
func (s *serve) awaitReady(life context.Context, timeout time.Duration) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case got := <-s.stderr.ready:
		return s.accept(got)
	case <-timer.C:
		return &ServeError{
			ExitCode: -1,
			Stderr:   s.stderr.lastLines(),
			Hint:     "the VM may be overloaded, or the command is no step runner",
			Err:      fmt.Errorf("it was not ready within %v", timeout),
		}
	case <-life.Done():
		// A serve that said it is ready and ended at once is one that ended.
		return context.Cause(life)
	}
}

// accept checks the path serve told.
func (s *serve) accept(got string) error {
	if err := wire.CheckSocketPath(got); err != nil || !wire.SameBuildSocket(s.asked, got) {
		return &ServeError{
			ExitCode: -1,
			Err:      fmt.Errorf("it listens on %q instead of %q", got, s.asked),
			Hint:     "the command is another step runner than the one for this build",
		}
	}
	s.socket = got
	s.ready.Store(true)
	return nil
}

// exitError says how serve ended. The process has exited.
func (s *serve) exitError() error {
	err := s.process.Err()
	s.stderr.flush()
	if isLost(err) {
		return err
	}
	e := &ServeError{Ready: s.ready.Load(), ExitCode: exitCode(err), Stderr: s.stderr.lastLines(), Err: err}
	if err == nil {
		e.Err = errors.New("exit status 0")
	}
	switch e.ExitCode {
	case 126, 127:
		e.Hint = missingHint(s.runner)
	case 137:
		e.Hint = "it was killed; is the VM out of memory?"
	}
	if !e.Ready && strings.Contains(e.Stderr, strings.TrimLeft(secretFlag, "-")) {
		e.Hint = "it does not know " + secretFlag + ": is it older than this program, or another step runner? " +
			"install this version on the VM"
	}
	return e
}

// isDone reports whether done is closed.
func isDone(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// missingHint says what to do about a program that is not there.
func missingHint(runner []string) string {
	return fmt.Sprintf("is %q installed on the VM, executable, and on the PATH of a non-interactive login? "+
		"install it, name its path as the runner command (stepmux run --runner-command)%s", strings.Join(runner, " "), orBootstrap)
}

// orBootstrap ends a hint on what to install.
const orBootstrap = ", or let it be put there (stepmux run --bootstrap)"

// isLost reports whether err says that the way to the VM was lost, rather than that something ended there.
func isLost(err error) bool {
	var (
		conn  *mux.ConnError
		relay *relay.Error
	)
	return errors.As(err, &conn) || errors.As(err, &relay)
}

// exitCode returns the exit status in err as a shell counts, -1 if there is none.
func exitCode(err error) int {
	exit := (*mux.ExitError)(nil)
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &exit):
		return -1
	case exit.Signal != "":
		if n, ok := signalNumbers[exit.Signal]; ok {
			return 128 + int(n)
		}
		return -1
	case exit.Status == 0:
		return -1
	default:
		return exit.Status
	}
}

// awaitExit waits until serve, whose leash has ended, is gone.
func (s *serve) awaitExit(ctx context.Context) error {
	select {
	case <-s.process.Exited():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop steps serve: it is not gone after its time: %w", context.Cause(ctx))
	}
}

// leftDirectory reports whether serve had listened and then ended in a way that let it not clean up,
// over a connection that still lives.
func (s *serve) leftDirectory() bool {
	exit := (*mux.ExitError)(nil)
	return s.ready.Load() && errors.As(s.process.Err(), &exit)
}

// prefix quotes the first bytes of foreign text for an error message.
func prefix(p []byte) string { return strconv.Quote(string(p[:min(len(p), 80)])) }
