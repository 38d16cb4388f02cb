package service

import (
	"testing"

	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/internal/neighbourcases"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
)

// TestNeighboursCasesHoldForGitLabsManager runs the cases over the service that GitLab Runner's manager calls.
func TestNeighboursCasesHoldForGitLabsManager(t *testing.T) {
	cases := neighbourcases.Load(t)
	h := newHarness(t)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			h := *h
			h.t = t
			runCase(&h, c)
		})
	}
}

func runCase(h *harness, c *neighbourcases.Case) {
	dir := h.t.TempDir()
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
