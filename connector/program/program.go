package program

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/relay"
)

// Kind says how a step runner is driven.
type Kind string

const (
	// Stepmux is our own program: it has a relay, ends with its stdin and serves stepmux.v1.
	Stepmux Kind = "stepmux"
	// StepRunner is GitLab's, gitlab-runner or step-runner: no relay, no leash, and the service that the
	// manager of GitLab Runner calls.
	StepRunner Kind = "step-runner"
)

// Program is the step runner of a VM, as it was found there.
type Program struct {
	Kind Kind
	// Version and Platform (os/arch as Go names them) are as the program reports them; empty if it does not.
	Version, Platform string
	// Command starts it.
	Command []string
	// Uploaded tells that it was put there from here, by Config.Bootstrap.
	Uploaded bool
}

// String describes p for people.
func (p Program) String() string {
	parts := []string{string(p.Kind)}
	if p.Version != "" {
		parts = append(parts, p.Version)
	}
	if p.Platform != "" {
		parts = append(parts, "for "+p.Platform)
	}
	how := "as "
	if p.Uploaded {
		how = "uploaded to "
	}
	return strings.Join(parts, " ") + ", " + how + strings.Join(p.Command, " ")
}

// Conn is the connection to the VM. A *mux.Conn is one.
type Conn interface {
	Start(ctx context.Context, cmd mux.Command) (*mux.Process, error)
	Relay(ctx context.Context, cmd mux.Command) (*relay.Relay, error)
}

// RelayUse says whether a relay is wanted.
type RelayUse int

const (
	// TryRelay uses a relay if one runs on the VM.
	TryRelay RelayUse = iota
	// NoRelay starts no relay.
	NoRelay
	// OnlyRelay accepts only a program that runs a relay.
	OnlyRelay
)

// Config says where to look for a step runner, and for which.
type Config struct {
	Conn Conn // required
	// Runner is the step runner's command. Required.
	Runner []string
	// Others lets gitlab-runner or step-runner take the place of a Runner that is missing.
	Others bool
	// Bootstrap are the programs that may be put on the VM.
	Bootstrap []*Binary
	// TempDir is the VM's directory for temporary files. Required.
	TempDir string
	Relay   RelayUse
	// Timeout bounds the wait for each answer of a program. Required.
	Timeout time.Duration
	Logger  *slog.Logger // required
}

// StartRelay returns the relay of a runner command, which it starts if it does not run.
func (cfg *Config) StartRelay(ctx context.Context, runner []string) (*relay.Relay, error) {
	relay, err := cfg.Conn.Relay(ctx, mux.Command{
		Argv: relayArgv(runner, cfg.TempDir), Stderr: relayLog{cfg.Logger},
	})
	return relay, relayHint(runner, err)
}

// HasNoRelay reports whether an error of StartRelay says that there is no relay, on a connection that works.
func HasNoRelay(err error) bool {
	refused := (*relay.Error)(nil)
	return errors.As(err, &refused) || errors.Is(err, mux.ErrForbidden)
}

// relayHint adds advice to the error of a relay that did not start.
func relayHint(runner []string, err error) error {
	failed := (*relay.Error)(nil)
	if !errors.As(err, &failed) {
		return err
	}
	switch failed.ExitCode {
	case 0:
		if failed.Version != 0 || failed.Op != "start" {
			return err
		}
		return fmt.Errorf("%w (does the login run the command it is given, and is that a stepmux that has the "+
			"command steps relay?)", err)
	case 126, 127:
		return fmt.Errorf("%w (%s)", err, MissingHint(runner))
	default:
		return fmt.Errorf("%w (is the runner command a stepmux that has the command steps relay?)", err)
	}
}

// relayLog passes a relay's stderr on to a logger.
type relayLog struct{ logger *slog.Logger }

func (l relayLog) Write(p []byte) (int, error) {
	if text := tail.Lines(p); text != "" {
		l.logger.Warn("relay", "says", text)
	}
	return len(p), nil
}
