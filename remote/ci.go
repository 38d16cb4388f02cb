package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/isolate"
	"github.com/stepmux/stepmux/remote/job"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/action"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// ciSteps is the environment variable that holds the steps of a CI job.
const ciSteps = "STEPS"

// CIConfig says where CI runs.
type CIConfig struct {
	// WorkDir is the directory of the steps, which must exist. If empty, the process's.
	WorkDir string
	// Environ is the environment of the CI job, which has STEPS: the steps, in YAML or JSON.
	Environ []string
	// Version is the version of this program.
	Version string
}

// ciSystem is the exit code if the machine, and not a step, failed.
const ciSystem = 3

// CI runs the steps of a CI job on this machine, for the job's own script. The job's environment becomes the job's
// variables, and the steps get it as their environment, except for variables that look like secrets.
//
// Both output streams go to stdio.Out, with a line before the output of each step. The reason for a failure goes to
// stdio.Err. CI returns the exit code for the program: 0, that of the step that failed, 1 if that step has no exit
// code, or 3 if the machine failed. The error says that the steps are not valid, or could not be run.
//
// When ctx ends, the job gets SIGTERM and, 10 s later, SIGKILL. When CI returns, all processes and directories of the
// job are gone.
func CI(ctx context.Context, stdio Stdio, cfg CIConfig) (code int, err error) {
	text, environ := "", []string{}
	for _, entry := range cfg.Environ {
		if value, ok := strings.CutPrefix(entry, ciSteps+"="); ok {
			text = value
		} else {
			environ = append(environ, entry)
		}
	}
	if text == "" {
		return 0, fmt.Errorf("the environment variable %s is not set; it holds the steps to run", ciSteps)
	}
	definition, err := lang.ParseCalled(ciSteps, []byte(text))
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "stepmux-ci-")
	if err != nil {
		return 0, err
	}
	init := &proc.Init{Room: isolate.Spec{Level: vmconfig.Off}, OrphanDir: dir}
	defer func() { err = errors.Join(err, init.Close(), os.RemoveAll(dir)) }()
	store, err := job.New(job.Config{
		Dir: dir, Init: init, Language: action.New(action.Config{}), Policy: engine.Passing("all"), Version: cfg.Version,
		Fetcher: &component.Fetcher{Command: fetchCommand}, OutputLimit: -1,
	})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, store.Close()) }() //nolint:contextcheck // close the store even if ctx has ended
	const id = "ci"
	err = store.Create(job.Spec{ //nolint:contextcheck // the job is stopped below
		ID: id, WorkDir: cfg.WorkDir, Merged: true,
		Config: engine.Config{
			Definition: definition, Places: lang.NewLocator(ciSteps, []byte(text)),
			Vars: engine.EnvironmentVars(environ, nil), RunnerEnv: environ,
		},
	})
	if err != nil {
		return 0, err
	}
	follower, err := store.Follow(id)
	if err != nil {
		return 0, err
	}
	defer follower.Close()
	defer context.AfterFunc(ctx, func() { store.Stop(id) })()
	alive := context.WithoutCancel(ctx)
	if err := copyLog(alive, stdio.Out, follower); err != nil {
		store.Stop(id) // its output is no longer shown
		return 0, err
	}
	stat, _, err := follower.Wait(alive)
	if err != nil {
		return 0, err
	}
	if stat.State == job.Succeeded {
		return 0, nil
	}
	fmt.Fprintf(stdio.Err, "stepmux: %s\n", stat.Message)
	switch {
	case stat.System:
		return ciSystem, nil
	case stat.ExitCode != 0:
		return stat.ExitCode, nil
	default:
		return 1, nil
	}
}

// copyLog copies the job's output to its end.
func copyLog(ctx context.Context, to io.Writer, from *job.Follower) error {
	buf := make([]byte, 32<<10)
	for offset := int64(0); ; {
		n, err := from.ReadAt(ctx, job.Merged, buf, offset)
		offset += int64(n)
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
