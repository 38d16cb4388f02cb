package service

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/remote/api/runnerproto"
)

// neighbourCase is a conformance case on which the public step runner agrees, as far as this service can tell it.
type neighbourCase struct {
	Name      string
	StepsYAML string                     `json:"steps_yaml"`
	Files     map[string]json.RawMessage // texts, or objects of a text and a mode
	Env       map[string]string
	Variables []struct {
		Key, Value   string
		File, Masked bool
	}
	Expect struct {
		Status         string
		LogContains    []string `json:"log_contains"`
		LogNotContains []string `json:"log_not_contains"`
		ErrorContains  []string `json:"error_contains"`
	}
}

// decidedOtherwise are the cases that this service goes against, and why.
var decidedOtherwise = map[string]string{
	"env_invocation_not_referenced_by_own_inputs": "the published example uses env of a step in its own inputs",
	"schema_name_missing":                         "a step of a job without a name gets one, step_1",
}

// TestNeighboursCasesHoldForGitLabsManager runs the cases over the service that GitLab Runner's manager calls.
func TestNeighboursCasesHoldForGitLabsManager(t *testing.T) {
	root := os.Getenv("STEPMUX_CASES")
	if root == "" {
		t.Skip("part missing: STEPMUX_CASES, the folder of the conformance cases")
	}
	names, err := filepath.Glob(filepath.Join(root, "neighbour", "*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, names)
	h := newHarness(t)
	seen := map[string]bool{}
	for _, name := range names {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		c := &neighbourCase{}
		require.NoError(t, json.Unmarshal(data, c))
		t.Run(c.Name, func(t *testing.T) {
			h := *h
			h.t = t
			wrong := c.run(&h)
			if why := decidedOtherwise[c.Name]; why != "" {
				seen[c.Name] = true
				require.NotEmpty(t, wrong, "the case passes, though it was decided otherwise: %s", why)
				return
			}
			require.Empty(t, wrong)
		})
	}
	for name := range decidedOtherwise {
		require.True(t, seen[name], "there is no case %s", name)
	}
}

// run runs the case and returns what is not as expected.
func (c *neighbourCase) run(h *harness) (wrong []string) {
	dir := h.t.TempDir()
	for name, raw := range c.Files {
		var file struct{ Content, Mode string }
		if json.Unmarshal(raw, &file.Content) != nil {
			require.NoError(h.t, json.Unmarshal(raw, &file))
		}
		mode := uint64(0o644)
		if file.Mode != "" {
			var err error
			mode, err = strconv.ParseUint(file.Mode, 8, 32)
			require.NoError(h.t, err)
		}
		path := filepath.Join(dir, name)
		require.NoError(h.t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(h.t, os.WriteFile(path, []byte(file.Content), os.FileMode(mode)))
	}
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
	// A job that is found to be wrong before its first step may be refused, or fail without any output.
	early := state == "rejected" || state == "failure" && log == ""
	fits := c.Expect.Status == state || early && c.Expect.Status != "success"
	if !fits {
		wrong = append(wrong, "the status is "+state+": "+message)
	}
	for _, text := range c.Expect.ErrorContains {
		if !strings.Contains(message, text) {
			wrong = append(wrong, "the message has no "+text+": "+message)
		}
	}
	for _, text := range c.Expect.LogContains {
		if !strings.Contains(log, text) {
			wrong = append(wrong, "the log has no "+text+": "+log)
		}
	}
	for _, text := range c.Expect.LogNotContains {
		if strings.Contains(log, text) {
			wrong = append(wrong, "the log has "+text+": "+log)
		}
	}
	return wrong
}
