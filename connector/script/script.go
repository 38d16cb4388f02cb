package script

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/relay"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

const (
	defaultGrace = 10 * time.Second
	// defaultReadyTimeout is that of a step runner.
	defaultReadyTimeout = 30 * time.Second
)

// Starter starts processes on a VM, such as a *mux.Conn, which uses sessions, or a *relay.Relay.
type Starter interface {
	Start(ctx context.Context, cmd mux.Command) (*mux.Process, error)
}

// Script is a shell script to run on the VM.
type Script struct {
	// Shell is the command of the shell that reads Text from stdin. If empty, bash.
	Shell []string
	// Text is the script. It is sent on stdin, never on a command line.
	Text []byte
	// Grace is the time between SIGTERM and SIGKILL when the script is stopped. If zero, 10s.
	Grace time.Duration
	// ReadyTimeout is how long the login may take, in a session, to begin what runs the script. If zero, 30s.
	ReadyTimeout time.Duration
	// Options are the options of the VM, without Linger. A session has no isolation, build user or limits: there, a
	// script that needs them is refused.
	vmconfig.Options
	// Stdout and Stderr receive the output as it arrives. A *buildlog.Log is written to directly, any other Writer
	// through a Log, which both have if they are the same Writer. If nil, the output is discarded.
	Stdout, Stderr io.Writer
}

// Run runs s and returns its exit code (128 plus the signal's number if a signal ended it). With a relay, the VM's
// stepmux runs it. In a session the VM needs dash, bash or BusyBox as its sh, mktemp, head, setsid, grep and other
// common tools.
//
// When ctx ends, the shell's process group gets SIGTERM and, after the grace, SIGKILL. Run waits for that, not much
// longer than the grace, and returns ctx.Err(). The same happens on the VM if the connection is lost or this program
// is killed. When the shell ends, processes that it left behind are killed; in a session, those that left the shell's
// process group are found only by their environment. Any other error is a [*MachineError] if the VM could not run the
// script, a *buildlog.Error, a *mux.ConnError or a *relay.Error.
func Run(ctx context.Context, starter Starter, s Script) (code int, err error) {
	if len(s.Shell) == 0 {
		s.Shell = []string{"bash"}
	}
	if s.Shell[0] == "" {
		return 0, &MachineError{Stage: "shell", Text: "the shell's name is empty", Hint: "configure another"}
	}
	if s.Grace <= 0 {
		s.Grace = defaultGrace
	}
	if err := s.Check(); err != nil {
		return 0, err
	}
	if demand, demands := s.Demand(); demands && !isRelay(starter) {
		return 0, &MachineError{
			Stage: demand.Kind, Text: demand.Needs + " a relay, and the script runs in an SSH session of its own",
			Hint: "install a stepmux that has a relay on the VM" + demand.Otherwise,
		}
	}
	out := openOutputs(ctx, s.Stdout, s.Stderr)
	defer out.close(ctx)
	argv := scriptArgv(s.Shell, len(s.Text), s.Grace, newMark())
	if isRelay(starter) {
		argv = helperArgv(s)
	}
	p, err := start(ctx, starter, spec{
		argv: argv, name: strings.Join(s.Shell, " "), stderr: out.writer(out.stderr), grace: s.Grace, ready: s.ReadyTimeout,
	})
	if err != nil {
		return 0, err
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		// A failure shows up as the process's end. stdin stays open: it is the leash.
		_, _ = p.Write(s.Text)
	}()
	code, err = p.run(ctx, out)
	<-sent // soon: run has closed the channel that the goroutine writes to
	return code, lossOf("run script", err)
}

// isRelay reports whether starter is a relay, whose program is a stepmux.
func isRelay(starter Starter) bool {
	_, ok := starter.(*relay.Relay)
	return ok
}
