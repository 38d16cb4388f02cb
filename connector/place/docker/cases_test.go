package docker_test

import (
	"bytes"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/internal/testing/dockertest"
	"github.com/stepmux/stepmux/internal/testing/neighbourcases"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// sampled is the part of the cases that each run of the tests takes: one of so many. STEPMUX_ALL_CASES=1 takes all.
const sampled = 16

// ofTheOtherService are cases about lines that only the service for GitLab's manager writes.
var ofTheOtherService = []string{
	"complex_example", "script_echo", "log_level_default_info", "log_level_from_job_variable_case_insensitive",
	"log_level_invalid_rejected",
}

// TestNeighboursCasesHoldInAContainer runs the conformance cases as jobs in one container, which has the programs of
// this machine.
func TestNeighboursCasesHoldInAContainer(t *testing.T) {
	cases := neighbourcases.Load(t)
	d := dockertest.Start(t)
	cfg := config(t, d)
	dirs := t.TempDir()
	cfg.Spec.Image, cfg.Spec.Volumes = dockertest.Bare, []string{dirs + ":" + dirs}
	for _, dir := range []string{"/usr", "/bin", "/lib", "/lib64", "/etc"} {
		if _, err := os.Stat(dir); err == nil {
			cfg.Spec.Volumes = append(cfg.Spec.Volumes, dir+":"+dir+":ro")
		}
	}
	cfg.Spec.Tmpfs = []string{"/tmp"}
	b := connect(t, start(t, cfg))
	for i, c := range cases {
		if i%sampled != 0 && os.Getenv("STEPMUX_ALL_CASES") == "" || slices.Contains(ofTheOtherService, c.Name) {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			dir := dirs + "/" + c.Name
			require.NoError(t, os.Mkdir(dir, 0o755))
			c.LayOut(t, dir)
			job := connector.Job{Job: &stepmuxv1.Job{Steps: []byte(c.StepsYAML), Env: c.Env}, ID: c.Name, WorkDir: dir}
			for _, v := range c.Variables {
				job.Variables = append(job.Variables,
					&stepmuxv1.Variable{Key: v.Key, Value: v.Value, File: v.File, Masked: v.Masked})
			}
			var log bytes.Buffer
			result, err := b.Execute(t.Context(), job, &log)
			state, message := string(result.Status), result.Message
			if err != nil {
				state, message = "rejected", err.Error()
			}
			c.Require(t, state, message, log.String())
		})
	}
}
