// Package neighbourcases has the conformance cases on which the public step runner agrees, for tests that run them by a
// service. [Load] reads the [Case]s from the folder that STEPMUX_CASES names.
package neighbourcases

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Case is the part of a conformance case that a service can show.
type Case struct {
	Name      string
	StepsYAML string                     `json:"steps_yaml"`
	Files     map[string]json.RawMessage // texts, or objects of a text and a mode
	Env       map[string]string
	Variables []Variable
	Expect    struct {
		Status         string
		LogContains    []string `json:"log_contains"`
		LogNotContains []string `json:"log_not_contains"`
		ErrorContains  []string `json:"error_contains"`
	}
}

// Variable is a job variable.
type Variable struct {
	Key, Value   string
	File, Masked bool
}

// decidedOtherwise are the cases in which our services decide otherwise, with the reasons.
var decidedOtherwise = map[string]string{
	"env_invocation_not_referenced_by_own_inputs": "the published example uses env of a step in its own inputs",
	"schema_name_missing":                         "a step of a job without a name gets one, step_1",
}

// Load returns all cases. It skips the test if there is no folder with cases.
func Load(t testing.TB) []*Case {
	t.Helper()
	root := os.Getenv("STEPMUX_CASES")
	if root == "" {
		t.Skip("part missing: STEPMUX_CASES, the folder of the conformance cases")
	}
	names, err := filepath.Glob(filepath.Join(root, "neighbour", "*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, names)
	all := make([]*Case, len(names))
	seen := map[string]bool{}
	for i, name := range names {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		all[i] = &Case{}
		require.NoError(t, json.Unmarshal(data, all[i]))
		seen[all[i].Name] = true
	}
	for name := range decidedOtherwise {
		require.True(t, seen[name], "there is no case %s", name)
	}
	return all
}

// LayOut writes the case's files into dir.
func (c *Case) LayOut(t testing.TB, dir string) {
	t.Helper()
	for name, raw := range c.Files {
		var file struct{ Content, Mode string }
		if json.Unmarshal(raw, &file.Content) != nil {
			require.NoError(t, json.Unmarshal(raw, &file))
		}
		mode := uint64(0o644)
		if file.Mode != "" {
			var err error
			mode, err = strconv.ParseUint(file.Mode, 8, 32)
			require.NoError(t, err)
		}
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(file.Content), os.FileMode(mode)))
	}
}

// Require requires the expected result, or the result that was decided for a case in decidedOtherwise. state is
// success, failure or rejected.
func (c *Case) Require(t testing.TB, state, message, log string) {
	t.Helper()
	wrong := c.check(state, message, log)
	if why := decidedOtherwise[c.Name]; why != "" {
		require.NotEmpty(t, wrong, "the case passes, though it was decided otherwise: %s", why)
		return
	}
	require.Empty(t, wrong)
}

// check returns the differences from the expectation.
func (c *Case) check(state, message, log string) (wrong []string) {
	// A job with a mistake that is found before its first step may be refused, or may fail without any output.
	early := state == "rejected" || state == "failure" && log == ""
	if fits := c.Expect.Status == state || early && c.Expect.Status != "success"; !fits {
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
