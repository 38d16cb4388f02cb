package service

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/internal/testing/neighbourcases"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/isolate"
	"github.com/stepmux/stepmux/remote/job"
	"github.com/stepmux/stepmux/remote/proc"
)

// TestNeighboursCasesHoldForGitLabsManager runs the cases over the service that GitLab Runner's manager calls.
//
//stepmux:faults manager | What the public step runner does in its own cases
func TestNeighboursCasesHoldForGitLabsManager(t *testing.T) {
	runCases(t, newHarness(t), os.TempDir())
}

// Symptom: with isolation and a work directory below /tmp, a job whose first step was a local one had no such step:
// only the start of a command made the work directory visible.
func TestNeighboursCasesHoldWithIsolation(t *testing.T) {
	cwd, err := os.Getwd()
	require.NoError(t, err)
	for _, base := range []string{"/tmp", "/dev/shm", cwd} {
		t.Run(base, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t, isolated(t))
			runCases(t, h, base)
		})
	}
}

// isolated gives the jobs an init with isolation.
func isolated(t *testing.T) func(*job.Config) {
	return func(cfg *job.Config) {
		init := &proc.Init{Room: isolate.Spec{Level: vmconfig.Processes, Dir: cfg.Dir}}
		t.Cleanup(func() { require.NoError(t, init.Close()) })
		init.Prepare()
		if level, why := init.Isolation(t.Context()); level != vmconfig.Processes {
			t.Skip("part missing: namespaces: ", why)
		}
		cfg.Init = init
	}
}

// runCases runs all cases, with work directories in base.
func runCases(t *testing.T, h *harness, base string) {
	for _, c := range neighbourcases.Load(t) {
		t.Run(c.Name, func(t *testing.T) {
			h := *h
			h.t = t
			dir, err := os.MkdirTemp(base, "case") //nolint:usetesting // in base
			require.NoError(t, err)
			defer os.RemoveAll(dir)
			require.NoError(t, os.Chmod(dir, 0o755))
			runCase(&h, c, dir)
		})
	}
}

func runCase(h *harness, c *neighbourcases.Case, dir string) {
	c.LayOut(h.t, dir)
	req := &runnerproto.RunRequest{Id: c.Name, Env: c.Env, Steps: c.StepsYAML, Job: &runnerproto.Job{BuildDir: dir}}
	for _, v := range c.Variables {
		req.Job.Variables = append(req.Job.Variables,
			&runnerproto.Variable{Key: v.Key, Value: v.Value, File: v.File, Masked: v.Masked})
	}
	state, message, log := "success", "", ""
	if _, err := h.manager.Run(h.t.Context(), req); err != nil {
		state, message = "rejected", status.Convert(err).Message()
	} else {
		log = h.logs(h.manager, c.Name, 0, "")
		stat := h.status(c.Name)
		if message = stat.GetMessage(); stat.GetStatus() != runnerproto.Status_success {
			state = "failure"
		}
	}
	c.Require(h.t, state, message, log)
}
