package place

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/docker/go-units"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// Place is a running container or pod with the step runner of a build. It is safe for concurrent use.
type Place interface {
	// Configure makes it the place of a Connector's step runner. Close the Connector before the Place.
	Configure(cfg *connector.Config)
	// Image returns the image's digest or, if that is not known, its name.
	Image() string
	// Containers describes the containers to the job, for connector.Job.
	Containers() map[string]any
	// Explain adds to an error of the Connector the reason why the place has ended, if that is the error's cause. ctx
	// bounds the wait for it.
	Explain(ctx context.Context, err error) error
	// Note writes a line to the build's log if a step with this exit code ran out of memory.
	Note(ctx context.Context, exitCode int)
	// At names the place, for Attach in another process.
	At() string
	// Leave makes Close leave the place running, until another process attaches to it or its linger has passed.
	Leave()
	// Removed reports whether the place was seen removed.
	Removed() bool
	// Close removes the place, with all that runs there. ctx bounds the wait. Idempotent: later calls wait for the first
	// and return its result.
	Close(ctx context.Context) error
}

// ErrUnusable reports, by errors.Is, that no place can be made now on the machine that was asked for one: its daemon
// cannot be connected to, does not answer, or has no disk space.
var ErrUnusable = errors.New("no place can be made there")

// Config describes a build to the place that it gets.
type Config struct {
	// BuildID names the build. Required.
	BuildID string
	// Programs are stepmux programs; the one for the platform of the image or the node is used.
	Programs []*program.Binary
	// Log receives lines about the place for the build's log. If nil they are discarded.
	Log io.Writer
	// Linger is how long the build may outlive its link, at most 24h.
	Linger time.Duration
	// ReadyTimeout bounds the start of the step runner's relay in a place that is there, each question to a daemon, and
	// the time in which nothing of a program that is uploaded moves. If zero, 30s.
	ReadyTimeout time.Duration
	// StopTimeout bounds Close. If zero, 20s.
	StopTimeout time.Duration
	// Logger receives messages for operators. If nil, nothing is logged.
	Logger *slog.Logger
}

// DefaultReadyTimeout is the ReadyTimeout of a Config without one.
const DefaultReadyTimeout = 30 * time.Second

// Check checks the configuration and sets its defaults.
func (cfg *Config) Check() error {
	if _, err := wire.ParseBuildID(cfg.BuildID); err != nil {
		return err
	}
	if err := vmconfig.CheckLinger(cfg.Linger); err != nil {
		return err
	}
	cfg.Log = cmp.Or(cfg.Log, io.Discard)
	cfg.ReadyTimeout = cmp.Or(cfg.ReadyTimeout, DefaultReadyTimeout)
	cfg.StopTimeout = cmp.Or(cfg.StopTimeout, 20*time.Second)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	return nil
}

// Say writes a line to the build's log. A log that cannot be written ends the build by itself.
func (cfg *Config) Say(format string, args ...any) { fmt.Fprintf(cfg.Log, format+"\n", args...) }

// Killed is the exit status of a process that SIGKILL ended, as a shell reports it.
const Killed = 137

// LimitText tells a limit of memory, in parentheses, for a message; it is empty without one.
func LimitText(limit int64) string {
	if limit == 0 {
		return ""
	}
	return fmt.Sprintf(" (its limit is %s)", units.BytesSize(float64(limit)))
}

// Directories of the step runner in a container.
const (
	// Home is where the step runner is.
	Home = wire.ContainerHome
	// ProgramDir has the program, which is ProgramFile.
	ProgramDir  = Home + "/bin"
	ProgramFile = ProgramDir + "/stepmux"
	// RunDir has the sockets and working directories if Home is not writable.
	RunDir = Home + "/run"
)
