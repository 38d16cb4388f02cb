package program

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/relay"
)

// Kind is the family of a step runner, which decides how it is driven.
type Kind string

const (
	// Stepmux is our own program: it has a relay, ends with its stdin and serves stepmux.v1.
	Stepmux Kind = "stepmux"
	// StepRunner is GitLab's gitlab-runner or step-runner: without relay and leash, and with the service that the
	// manager of GitLab Runner calls.
	StepRunner Kind = "step-runner"
)

// Program is the step runner that was found on a VM.
type Program struct {
	Kind Kind `json:"kind"`
	// Version and Platform (os/arch as Go names them) are those that the program reports; empty if it does not.
	Version  string `json:"version,omitempty"`
	Platform string `json:"platform,omitempty"`
	// Linger is true if its serve can outlive the connection (steps serve --linger).
	Linger bool `json:"-"`
	// Command is the command that starts it, for people.
	Command []string `json:"command"`
	// Uploaded is true if Config.Bootstrap has just uploaded it.
	Uploaded bool `json:"uploaded"`

	argv   []string // runs it; nil if Command does
	binary *Binary  // the one of Config.Bootstrap that it is a copy of, at this target; nil if it is not
	at     target
}

// Argv returns the command that runs the program, to which the caller appends arguments. A program that
// Config.Bootstrap uploaded, now or earlier, runs only while its file has the expected checksum.
func (p Program) Argv() []string {
	if p.argv != nil {
		return p.argv
	}
	return p.Command
}

// String describes p for people.
func (p Program) String() string {
	text, how := string(p.Kind), ", as "
	if p.Version != "" {
		text += " " + p.Version
	}
	if p.Platform != "" {
		text += " for " + p.Platform
	}
	if p.Uploaded {
		how = ", uploaded to "
	}
	return text + how + strings.Join(p.Command, " ")
}

// Starter starts processes on the VM, such as a *mux.Conn or a *relay.Relay.
type Starter interface {
	Start(ctx context.Context, cmd mux.Command) (*mux.Process, error)
}

// Conn is the connection to the VM, such as a *mux.Conn.
type Conn interface {
	Starter
	Relay(ctx context.Context, cmd mux.Command) (*relay.Relay, error)
}

// RelayUse selects whether a relay is used.
type RelayUse int

const (
	// TryRelay uses a relay if one runs on the VM.
	TryRelay RelayUse = iota
	// NoRelay starts no relay.
	NoRelay
	// OnlyRelay accepts only a program that runs a relay.
	OnlyRelay
)

// Config describes where to look for a step runner, and which programs are acceptable.
type Config struct {
	Conn Conn // required
	// Runner is the step runner's command. Required.
	Runner []string
	// Others allows gitlab-runner or step-runner to replace a missing Runner.
	Others bool
	// Bootstrap are the programs that may be uploaded to the VM.
	Bootstrap []*Binary
	// TempDir is the VM's directory for temporary files. Required.
	TempDir string
	// Shared uploads programs to a place where all users of the VM can start them.
	Shared bool
	Relay  RelayUse
	// Timeout bounds the wait for each answer of a program. Required.
	Timeout time.Duration
	Logger  *slog.Logger // required
}

// StartRelay returns the relay of a runner command, and starts it if it does not run yet. The error wraps ErrNotRun if
// another program has read the bytes that were sent to the relay.
func (cfg *Config) StartRelay(ctx context.Context, runner []string) (*relay.Relay, error) {
	log := &relayLog{logger: cfg.Logger}
	started, err := cfg.Conn.Relay(ctx, mux.Command{Argv: relayArgv(runner, cfg.TempDir), Stderr: log})
	if err == nil {
		log.begin()
	}
	failed, ok := errors.AsType[*relay.Error](err)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, unanswered(strings.Join(shown(relayArgv(runner, cfg.TempDir)), " "), log.said())
	case errors.Is(err, relay.ErrOtherProgram):
		return nil, notRun(relayArgv(runner, cfg.TempDir), failed.Err, nil, failed.Stderr)
	case !ok, failed.ExitCode == 0 && (failed.Version != 0 || failed.Op != "start"):
		return started, err
	case failed.ExitCode == 0:
		return nil, fmt.Errorf("%w (does the login run the command it is given, and is that a stepmux that has the "+
			"command steps relay?)", err)
	case failed.ExitCode == 126, failed.ExitCode == 127:
		return nil, fmt.Errorf("%w (%s)", err, MissingHint(runner))
	default:
		const hint = "is the runner command a stepmux that has the command steps relay?"
		if advice := Advice(failed.Stderr, hint); advice != "" {
			err = fmt.Errorf("%w (%s)", err, advice)
		}
		return nil, err
	}
}

// HasNoRelay reports whether an error of StartRelay means that there is no relay, although the connection works.
func HasNoRelay(err error) bool {
	_, failed := errors.AsType[*relay.Error](err)
	return failed || errors.Is(err, mux.ErrForbidden)
}

// Lasts reports whether an error of StartRelay means that there is no relay and that trying again is useless: the
// program is missing, or speaks another version of the protocol.
func Lasts(err error) bool {
	failed, ok := errors.AsType[*relay.Error](err)
	return ok && (failed.Version != 0 || failed.ExitCode == 126 || failed.ExitCode == 127)
}

// relayLog passes a relay's stderr to a logger once the relay has started. If the relay does not start, its error
// contains the stderr, and may not deserve a warning: another program may replace it.
type relayLog struct {
	logger *slog.Logger

	mu      sync.Mutex // guards the following
	started bool
	held    tail.Writer // the text until then
}

func (l *relayLog) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.started = true
	l.sayLocked(l.held.String())
}

// said returns the text so far of a relay that has not started.
func (l *relayLog) said() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held.String()
}

func (l *relayLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.started {
		return l.held.Write(p)
	}
	l.sayLocked(tail.Lines(p[max(0, len(p)-tail.MaxBytes):]))
	return len(p), nil
}

func (l *relayLog) sayLocked(text string) {
	if text != "" {
		l.logger.Warn("relay", "says", text)
	}
}
