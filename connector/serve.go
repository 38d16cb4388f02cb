package connector

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// serve is a build's step runner on the VM.
type serve struct {
	process *mux.Process
	stderr  *serveStderr
	socket  string   // the requested path; the reported one once ready is set
	runner  []string // its command, for messages
	ready   atomic.Bool
	// detached is true if the step runner outlives process, which has started it.
	detached bool
}

// lateTimer is the delay of a timer that shows that this program was stopped (SIGSTOP) in between.
const lateTimer = 100 * time.Millisecond

// awaitReady waits for the ready marker and checks the path that serve reports. life ends when serve ends.
func (s *serve) awaitReady(life context.Context, timeout time.Duration) error {
	begin := time.Now()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	var got string
	select {
	case got = <-s.stderr.ready:
	case <-timer.C:
		if time.Since(begin) > timeout+lateTimer { // the marker, or the loss of the connection, may still be unread
			return s.awaitReady(life, timeout)
		}
		const hint = "the VM may be overloaded, or the command is no step runner"
		err := fmt.Errorf("the step runner was not ready within %v", timeout)
		s.stderr.flush()
		return &ServeError{ExitCode: -1, Stderr: s.stderr.tail.String(), Hint: hint, Err: err}
	case <-life.Done():
		// A serve that reported ready and exited at once counts as ended, unless it is detached.
		if !s.detached || len(s.stderr.ready) == 0 {
			return context.Cause(life)
		}
		got = <-s.stderr.ready
	}
	if wire.CheckSocketPath(got) != nil || !wire.SameBuildSocket(s.socket, got) {
		const hint = "the command is another step runner than the one for this build"
		err := fmt.Errorf("the step runner listens on %q instead of %q", got, s.socket)
		return &ServeError{ExitCode: -1, Hint: hint, Err: err}
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
	e := &ServeError{Ready: s.ready.Load(), ExitCode: mux.ExitCode(err), Stderr: s.stderr.tail.String(), Err: err}
	if err == nil {
		e.Err = errors.New("exit status 0")
	}
	switch e.ExitCode {
	case 126, 127:
		e.Hint = program.MissingHint(s.runner)
	case 137:
		e.Hint = "the step runner was killed; is the VM out of memory?"
	}
	if !e.Ready && strings.Contains(e.Stderr, strings.TrimLeft(secretFlag, "-")) {
		e.Hint = "the step runner does not know " + secretFlag + ": is it older than this program, or another step runner? " +
			"install this version on the VM"
	}
	if !e.Ready && strings.Contains(e.Stderr, wire.NoSecret) {
		e.Err, e.Hint = errors.New("its standard input had ended"), program.InputHint
	}
	if hint := vmconfig.MissingHint(e.Stderr); !e.Ready && hint != "" {
		e.Hint = hint
	}
	return e
}

// serveStderr receives serve's standard error. It finds the ready marker, keeps the last lines for an error message,
// and passes all other lines to the log. Of a crash it passes one line; the stacks go to the logger.
type serveStderr struct {
	log    *buildlog.Remarks
	logger *slog.Logger
	ready  chan string // receives the path in the marker, once

	mu      sync.Mutex // guards the following
	scanner wire.MarkerScanner
	found   bool
	line    []byte // an unfinished line
	crash   []byte // lines that may be the first ones of a crash
	stacks  []byte // of a crash, up to maxStacks; nil if there was none

	tail tail.Writer
}

// maxStacks bounds the stacks of a crash, in bytes.
const maxStacks = 64 << 10

func newServeStderr(log *buildlog.Remarks, logger *slog.Logger) *serveStderr {
	return &serveStderr{log: log, logger: logger, ready: make(chan string, 1)}
}

// Write never fails: a failed log ends the build by itself.
func (s *serveStderr) Write(p []byte) (int, error) {
	s.mu.Lock()
	text := s.takeLocked(p)
	s.mu.Unlock()
	s.pass(text)
	return len(p), nil
}

// takeLocked returns the text for the log: the lines that p completes, without the marker.
func (s *serveStderr) takeLocked(p []byte) []byte {
	var pass []byte
	for len(p) > 0 {
		line, rest, ended := bytes.Cut(p, []byte{'\n'})
		if ended {
			line = p[:len(line)+1]
		}
		p = rest
		s.line = append(s.line, line...)
		if !s.found {
			_, _ = s.scanner.Write(line) // never fails
			var path string
			if path, s.found = s.scanner.Path(); s.found {
				s.line = nil
				s.ready <- path
				continue
			}
		}
		if ended || len(s.line) > tail.MaxBytes {
			pass = append(pass, s.lineLocked(string(s.line))...)
			s.line = s.line[:0]
		}
	}
	return pass
}

// lineLocked returns the text for the log after one more line.
func (s *serveStderr) lineLocked(line string) (pass []byte) {
	held := s.crash
	switch {
	case s.stacks != nil:
		s.stacks = append(s.stacks, line[:min(len(line), maxStacks-len(s.stacks))]...)
		return nil
	case len(held) > 0 && tail.IsStack(line): // the program ends, and writes nothing else
		s.crash, s.stacks = nil, []byte(line)
		return []byte(tail.Lines(held) + "\n")
	case len(held) < tail.MaxBytes && (tail.IsCrash(line) || len(held) > 0 && strings.TrimSpace(line) == ""):
		s.crash = append(held, line...)
		return nil
	}
	s.crash = nil
	return append(held, line...)
}

// flush passes on an unfinished line at the end.
func (s *serveStderr) flush() {
	s.mu.Lock()
	rest := append(s.crash, s.line...)
	stacks := s.stacks
	s.line, s.crash = nil, nil
	s.mu.Unlock()
	s.pass(rest)
	s.log.Flush()
	if len(stacks) > 0 {
		s.logger.Info("the step runner has crashed", "stacks", string(stacks))
	}
}

func (s *serveStderr) pass(text []byte) {
	_, _ = s.tail.Write(text) // neither this nor the next call fails
	_, _ = s.log.Write(text)
}
