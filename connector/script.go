package connector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/relay"
)

// Script is a shell script to be run on a VM without a step runner.
type Script struct {
	// Shell is the shell's command, to which Text is given on stdin. If empty, bash.
	Shell []string
	// Text is the script. It travels on stdin, never on a command line.
	Text []byte
	// Grace is the time between SIGTERM and SIGKILL when the script is stopped. If zero, 10s.
	Grace time.Duration
	// Stdout and Stderr receive the output as it comes, each by a [Log] of its own if it is none itself. If nil it
	// is discarded.
	Stdout, Stderr io.Writer
}

// RunScript runs s, started by starter, and returns its exit code (128 plus the signal's number if one ended
// it). A relay's program does it by itself. A session's shell needs a POSIX sh, mktemp, head, setsid and
// grep, among others as common.
//
// When ctx ends the shell's process group gets SIGTERM and after the grace SIGKILL; RunScript waits for that,
// not much longer than the grace, and returns ctx.Err(). The same happens on the VM when the connection is
// lost or this program is killed. What the shell has left behind at its end is killed; a session finds what
// left the shell's process group only by its environment. The error is else a [*MachineError] when the VM
// could not run the script, a [*LogError], a [*mux.ConnError] or a [*relay.Error].
func RunScript(ctx context.Context, starter Starter, s Script) (code int, err error) {
	if len(s.Shell) == 0 {
		s.Shell = []string{"bash"}
	}
	if s.Shell[0] == "" {
		return 0, &MachineError{Stage: "shell", Text: "its name is empty", Hint: "configure another"}
	}
	if s.Grace <= 0 {
		s.Grace = defaultGrace
	}
	out := openOutputs(ctx, s.Stdout, s.Stderr)
	defer out.close(ctx)
	g, err := startGuarded(ctx, starter, guardSpec{
		argv: func(mark string) []string {
			if isRelay(starter) {
				return helperArgv(s.Shell, len(s.Text), s.Grace)
			}
			return scriptArgv(s.Shell, len(s.Text), s.Grace, mark)
		},
		stderr: out.writer(out.stderr),
		grace:  s.Grace,
	})
	if err != nil {
		return 0, err
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		// What could not be sent shows in the end. stdin stays open: it is the leash.
		_, _ = g.Write(s.Text)
	}()
	code, err = g.run(ctx, out)
	<-sent // soon: run has closed what it is sent to
	return code, runError("run script", err)
}

// isRelay reports whether what starter starts is started by a relay, which is a program of ours.
func isRelay(starter Starter) bool {
	_, ok := starter.(*relay.Relay)
	return ok
}

// runError adds to a lost connection what was lost with it. The others speak for themselves.
func runError(what string, err error) error {
	lost := (*mux.ConnError)(nil)
	relay := (*relay.Error)(nil)
	if errors.As(err, &lost) || errors.As(err, &relay) {
		return fmt.Errorf("%s: %w", what, err)
	}
	return err
}
