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

	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/cgroup"
	"github.com/stepmux/stepmux/remote/isolate"
	"github.com/stepmux/stepmux/remote/pipe"
	"github.com/stepmux/stepmux/remote/step/component"
)

// isolationReport is the output of TellIsolation.
type isolationReport struct {
	// Level is the level that builds get. It is empty if the level that was asked for is not available.
	Level vmconfig.Level `json:"level"`
	// Reason says why Level is Off although Auto was asked for, or why it is empty. Remedy is advice for an operator.
	Reason string `json:"reason,omitempty"`
	Remedy string `json:"remedy,omitempty"`
	// Readable says that an ordinary user can read the program's file. Other processes of that user which see a step
	// runner can then look into it while it starts.
	Readable bool `json:"program_readable,omitempty"`
	// Limits says that limits are available. LimitsReason says why not; LimitsRemedy is advice for an operator.
	Limits       bool   `json:"limits"`
	LimitsReason string `json:"limits_reason,omitempty"`
	LimitsRemedy string `json:"limits_remedy,omitempty"`
}

// TellIsolation finds out which isolation level and limits builds get on this VM. It starts an init with the level, as
// serve does, ends it, and writes an isolationReport to out, in one line of JSON. A level that is not available is no
// error. Without limits in o it tries one of each kind. The login files that isolation makes in HOME stay, as after the
// first build; nothing else does.
func TellIsolation(ctx context.Context, out io.Writer, o vmconfig.Options) (err error) {
	if err := errors.Join(pipe.Conceal(), o.Check()); err != nil {
		return fmt.Errorf("isolation: %w", err)
	}
	noLimits := cgroup.Check(cmp.Or(o.Limits, vmconfig.Limits{Memory: 1, PIDs: 1, CPUs: 1})) // with root's rights
	o.Limits = vmconfig.Limits{}
	user, init, err := become(o)
	if err != nil {
		return fmt.Errorf("isolation: %w", err)
	}
	defer user.Close()
	defer func() { _ = init.Close() }() // for returns before the Close below, whose error is returned
	dir, err := os.MkdirTemp(o.TempDir, "stepmux-isolation-")
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
	init.Room, init.OrphanDir = room(o.Isolation, dir, component.DefaultDir()), dir
	init.Prepare() //nolint:contextcheck // the start of an init is bounded by itself
	level, why := init.Isolation(ctx)
	if err := init.Close(); err != nil {
		return fmt.Errorf("isolation: %w", err)
	}
	told := isolationReport{Level: level}
	if why != nil {
		told.Remedy = isolate.Remedy(why)
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
