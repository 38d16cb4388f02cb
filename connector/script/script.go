package script

import (
	"context"
	"io"
	"time"

	"github.com/stepmux/stepmux/internal/limits"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/relay"
)

const defaultGrace = 10 * time.Second

// Starter starts processes on a VM: a *mux.Conn, in sessions of its own, or a *relay.Relay.
type Starter interface {
	Start(ctx context.Context, cmd mux.Command) (*mux.Process, error)
}

// Script is a shell script.
type Script struct {
	// Shell is the shell's command, to which Text is given on stdin. If empty, bash.
	Shell []string
	// Text is the script. It travels on stdin, never on a command line.
	Text []byte
	// Grace is the time between SIGTERM and SIGKILL when the script is stopped. If zero, 10s.
	Grace time.Duration
	// Isolation is how far the script is held apart from the rest of the VM: auto, off, processes or private. If empty,
	// auto. A session has no isolation: there a script is refused that names a level other than off.
	Isolation string
	// TempDir is the VM's directory for the files of isolation. If empty, /tmp.
	TempDir string
	// BuildUser is the user of the script where the login is root, as that of a build. If empty, the login. A session
	// runs no script as another user.
	BuildUser string
	// Limits bound the script's processes together. They are had, or the script is refused, as in a session.
	Limits limits.Build
	// Stdout and Stderr receive the output as it comes. A *buildlog.Log is written to directly, any other Writer
	// through a Log of its own. If nil the output is discarded.
	Stdout, Stderr io.Writer
}

// Run runs s and returns its exit code (128 plus the signal's number if one ended it). By a relay the VM's stepmux
// runs it. A session needs dash, bash or BusyBox as the sh of the VM, and mktemp, head, setsid and grep, among others
// as common.
//
// When ctx ends, the shell's process group gets SIGTERM and after the grace SIGKILL; Run waits for that, not much
// longer than the grace, and returns ctx.Err(). The same happens on the VM when the connection is lost or this program
// is killed. Processes that the shell leaves behind are killed at its end; a session finds those that left the shell's
// process group only by their environment. Any other error is a [*MachineError] when the VM could not run the script,
// a *buildlog.Error, a *mux.ConnError or a *relay.Error.
func Run(ctx context.Context, starter Starter, s Script) (code int, err error) {
	if len(s.Shell) == 0 {
		s.Shell = []string{"bash"}
	}
	if s.Shell[0] == "" {
		return 0, &MachineError{Stage: "shell", Text: "its name is empty", Hint: "configure another"}
	}
	if s.Grace <= 0 {
		s.Grace = defaultGrace
	}
	level, err := wire.ParseIsolation(s.Isolation)
	switch {
	case err != nil:
		return 0, err
	case !isRelay(starter) && level != wire.IsolationAuto && level != wire.IsolationOff:
		return 0, &MachineError{
			Stage: "isolation", Text: "isolation " + level + " was asked for, and a script in a session of its own has none",
			Hint: "install a stepmux that has a relay on the VM, or ask for auto or off",
		}
	case !isRelay(starter) && s.BuildUser != "":
		return 0, &MachineError{
			Stage: "isolation", Text: "build user " + s.BuildUser + " was asked for, and a script in a session of its own has " +
				"the login's", Hint: "install a stepmux that has a relay on the VM, or leave out the build user",
		}
	case !isRelay(starter) && s.Limits != (limits.Build{}):
		return 0, &MachineError{
			Stage: "limits", Text: "limits were asked for, and a script in a session of its own has none",
			Hint: "install a stepmux that has a relay on the VM",
		}
	}
	out := openOutputs(ctx, s.Stdout, s.Stderr)
	defer out.close(ctx)
	argv := scriptArgv(s.Shell, len(s.Text), s.Grace, newMark())
	if isRelay(starter) {
		argv = helperArgv(s, level)
	}
	p, err := start(ctx, starter, spec{argv: argv, stderr: out.writer(out.stderr), grace: s.Grace})
	if err != nil {
		return 0, err
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		// A failure shows in the process's end. stdin stays open: it is the leash.
		_, _ = p.Write(s.Text)
	}()
	code, err = p.run(ctx, out)
	<-sent // soon: run has closed the channel it writes to
	return code, lossOf("run script", err)
}

// isRelay reports whether the processes of starter are started by a relay, which is a stepmux.
func isRelay(starter Starter) bool {
	_, ok := starter.(*relay.Relay)
	return ok
}
