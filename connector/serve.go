package connector

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux"
)

// serve is a build's step runner on the VM.
type serve struct {
	process *mux.Process
	stderr  *serveStderr
	socket  string   // asked for; once ready is set, the reported one
	runner  []string // its command, for messages
	ready   atomic.Bool
}

// copyStdout passes serve's stdout on to the log, to its end. serve prints nothing there, a login shell may.
func (s *serve) copyStdout(log *buildlog.Remarks) {
	defer log.Flush()
	buf := make([]byte, 4<<10)
	for {
		n, err := s.process.Read(buf)
		log.Add(buf[:n])
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
		// A serve that reported ready and ended at once counts as ended.
		return context.Cause(life)
	}
}

// accept checks the path that serve reports.
func (s *serve) accept(got string) error {
	if err := wire.CheckSocketPath(got); err != nil || !wire.SameBuildSocket(s.socket, got) {
		return &ServeError{
			ExitCode: -1,
			Err:      fmt.Errorf("it listens on %q instead of %q", got, s.socket),
			Hint:     "the command is another step runner than the one for this build",
		}
	}
	s.socket = got
	s.ready.Store(true)
	return nil
}

// exitError returns the error of a serve whose process has exited.
func (s *serve) exitError() error {
	err := s.process.Err()
	s.stderr.flush()
	if mux.IsLost(err) {
		return err
	}
	e := &ServeError{Ready: s.ready.Load(), ExitCode: mux.ExitCode(err), Stderr: s.stderr.lastLines(), Err: err}
	if err == nil {
		e.Err = errors.New("exit status 0")
	}
	switch e.ExitCode {
	case 126, 127:
		e.Hint = program.MissingHint(s.runner)
	case 137:
		e.Hint = "it was killed; is the VM out of memory?"
	}
	if !e.Ready && strings.Contains(e.Stderr, strings.TrimLeft(secretFlag, "-")) {
		e.Hint = "it does not know " + secretFlag + ": is it older than this program, or another step runner? " +
			"install this version on the VM"
	}
	return e
}

// awaitExit waits until serve is gone; its leash has ended.
func (s *serve) awaitExit(ctx context.Context) error {
	select {
	case <-s.process.Exited():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop steps serve: it is not gone after its time: %w", context.Cause(ctx))
	}
}

// leftDirectory reports whether serve was killed after it had listened, over a connection that still lives: then it
// did not clean up.
func (s *serve) leftDirectory() bool {
	exit := (*mux.ExitError)(nil)
	return s.ready.Load() && errors.As(s.process.Err(), &exit)
}
