package remote

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/limits"
	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/remote/cgroup"
	"github.com/stepmux/stepmux/remote/pipe"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/walls"
)

// IsolationConfig says how to try an isolation level.
type IsolationConfig struct {
	// Level is the level to try. Auto is the best that can be had.
	Level walls.Level
	// TempDir is the directory of the builds' directories, as a relay has it. Required.
	TempDir string
	// BuildUser is as in ServeConfig.
	BuildUser string
	// Limits are those to ask for. If zero, some of each kind.
	Limits limits.Build
}

// isolationReport is the answer of TellIsolation.
type isolationReport struct {
	// Level is the level that builds get, empty if the one that was asked for cannot be had.
	Level string `json:"level"`
	// Reason says why Level is off although the best was wanted, or why it is empty. Remedy is advice for an operator.
	Reason string `json:"reason,omitempty"`
	Remedy string `json:"remedy,omitempty"`
	// Readable says that the user, if not root, can read the program's file. Processes of this user can then look into a
	// step runner while it starts, if they see it.
	Readable bool `json:"program_readable,omitempty"`
	// Limits says that the limits can be had. LimitsReason says why not; LimitsRemedy is advice for an operator.
	Limits       bool   `json:"limits"`
	LimitsReason string `json:"limits_reason,omitempty"`
	LimitsRemedy string `json:"limits_remedy,omitempty"`
}

// TellIsolation starts and ends an init with the level, as serve does for its build, and writes an isolationReport to
// out, in one line of JSON. A level that cannot be had is no error. It leaves the login files that walls make in HOME,
// as the first build does, and nothing else.
func TellIsolation(ctx context.Context, out io.Writer, cfg IsolationConfig) (err error) {
	if err := pipe.Conceal(); err != nil {
		return fmt.Errorf("isolation: %w", err)
	}
	noLimits := cgroup.Check(cmp.Or(cfg.Limits, limits.Build{Memory: 1, PIDs: 1, CPUs: 1})) // with root's rights
	user, init, err := become(cfg.BuildUser, cfg.Level, limits.Build{})
	if err != nil {
		return fmt.Errorf("isolation: %w", err)
	}
	defer user.Close()
	defer func() { _ = init.Close() }() // if it is not closed yet: then there is an error that matters
	dir, err := os.MkdirTemp(cfg.TempDir, "stepmux-isolation-")
	if err != nil {
		return fmt.Errorf("isolation: make a directory: %w", err)
	}
	defer func() {
		if removeErr := rmtree.Remove(dir); removeErr != nil {
			err = errors.Join(err, fmt.Errorf("isolation: %w", removeErr))
		}
	}()
	if err := user.UseHome(dir); err != nil {
		return fmt.Errorf("isolation: %w", err)
	}
	init.Room, init.OrphanDir = room(cfg.Level, dir, component.DefaultDir()), dir
	init.Prepare() //nolint:contextcheck // the start of an init is bounded by itself
	level, why := init.Isolation(ctx)
	if err := init.Close(); err != nil {
		return fmt.Errorf("isolation: %w", err)
	}
	told := isolationReport{Level: string(level)}
	if why != nil {
		told.Remedy = walls.Remedy(why)
		told.Reason = strings.TrimSuffix(why.Error(), " ("+told.Remedy+")")
	}
	told.Readable = os.Geteuid() != 0 && unix.Access("/proc/self/exe", unix.R_OK) == nil
	told.Limits = noLimits == nil
	if refused, ok := errors.AsType[*cgroup.Error](noLimits); ok {
		told.LimitsReason, told.LimitsRemedy = refused.Reason.Error(), refused.Remedy
	}
	if err := json.NewEncoder(out).Encode(told); err != nil {
		return fmt.Errorf("isolation: write the level: %w", oserr.Bare(err))
	}
	return nil
}
