package replay

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/standalone/inspect"
	"github.com/stepmux/stepmux/internal/standalone/provenance"
	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// testCase is a conformance case of the kinds replay and provenance.
type testCase struct {
	Name       string
	Kind       string
	Cmd        string
	StepsYAML  string `json:"steps_yaml"`
	Files      map[string]string
	Fault      string
	GitRemotes map[string]struct {
		Branch   string
		Files    map[string]string
		ThenPush map[string]string `json:"then_push"`
	} `json:"git_remotes"`
	Vars []struct {
		Key, Value string
		Masked     bool
	}
	Expect struct {
		Status             string
		Replay             string
		ReplayExitCode     int      `json:"replay_exit_code"`
		ReplayDiffContains []string `json:"replay_diff_contains"`
		ExitCode           int      `json:"exit_code"`
		ErrorContains      []string `json:"error_contains"`
		LogContains        []string `json:"log_contains"`
		LogNotContains     []string `json:"log_not_contains"`
		FilesCount         int      `json:"files_count"`
		JSON               map[string]string
		JSONPresent        []string `json:"json_present"`
	}
}

func TestConformance(t *testing.T) {
	root := os.Getenv("STEPMUX_CASES")
	if root == "" {
		t.Skip("part missing: STEPMUX_CASES, the folder of the conformance cases")
	}
	files, err := filepath.Glob(filepath.Join(root, "engine", "*.json"))
	require.NoError(t, err)
	ran := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		c := &testCase{}
		if json.Unmarshal(data, c) != nil || c.Kind != "replay" && c.Kind != "provenance" {
			continue // of another form
		}
		ran++
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), c.run)
	}
	require.NotZero(t, ran)
}

func (c *testCase) run(t *testing.T) {
	tr := newTrial(t)
	for name, text := range c.Files {
		tr.file(name, text)
	}
	for _, v := range c.Vars {
		tr.vars = append(tr.vars, engine.Variable{Key: v.Key, Value: v.Value, Masked: v.Masked})
	}
	push := c.remotes(t, tr)
	first := tr.record(c.StepsYAML)
	push()
	if c.Kind == "provenance" {
		c.export(t, first)
		return
	}
	first = c.fault(t, tr, first)
	secrets := map[string]string{}
	for _, name := range regexp.MustCompile(`--secret (\w+)=env:`).FindAllStringSubmatch(c.Cmd, -1) {
		for _, v := range tr.vars {
			if v.Key == name[1] {
				secrets[v.Key] = v.Value
			}
		}
	}
	p, err := tr.prepare(first, func(cfg *Config) { cfg.Secrets = secrets })
	refused := (*RefusedError)(nil)
	if errors.As(err, &refused) {
		require.Equal(t, "failure", c.Expect.Status)
		require.Equal(t, 5, c.Expect.ExitCode)
		for _, text := range c.Expect.ErrorContains {
			require.ErrorContains(t, err, text)
		}
		return
	}
	require.NoError(t, err)
	require.NotEqual(t, 5, c.Expect.ExitCode)
	result, err := p.Run(t.Context(), t.Context(), first, 1, inspect.Ignore{}, tr.config(), nil)
	require.NoError(t, err)
	require.Equal(t, c.Expect.Replay == "equal", result.Same, "%v\n%s", result.Differences, tr.log.String())
	if c.Expect.ReplayExitCode == 0 {
		require.True(t, result.Same)
	}
	for _, text := range c.Expect.ReplayDiffContains {
		require.Contains(t, places(result), pointer(text))
	}
	for _, text := range c.Expect.LogContains {
		require.Contains(t, tr.log.String(), text)
	}
	for _, text := range c.Expect.LogNotContains {
		require.NotContains(t, tr.log.String(), text)
	}
}

// pointer is steps[0].outputs.v as a JSON pointer.
func pointer(text string) string {
	return "/" + strings.NewReplacer("[", "/", "]", "", ".", "/").Replace(text)
}

// remotes makes the repositories. push updates them later.
func (c *testCase) remotes(t *testing.T, tr *trial) (push func()) {
	tr.mirrors = map[string]string{}
	var later []func()
	for url, remote := range c.GitRemotes {
		dir := filepath.Join(t.TempDir(), "repo")
		r := fetchtest.NewRepository(t, dir)
		r.Commit(remote.Branch, fetchtest.Texts(remote.Files))
		tr.mirrors[url] = dir
		later = append(later, func() { r.Commit(remote.Branch, fetchtest.Texts(remote.ThenPush)) })
	}
	return func() {
		for _, f := range later {
			f()
		}
	}
}

// fault injects the case's fault between the two runs.
func (c *testCase) fault(t *testing.T, tr *trial, first *trace.Trace) *trace.Trace {
	switch c.Fault {
	case "":
		return first
	case "echo/step.yml edited after the trace was written":
		tr.file("echo/step.yml", c.Files["echo/step.yml"]+"# edited\n")
		return first
	case "trace edited: exec.program.digest of bash changed":
		first.Identity.Steps[0].Exec.Program.Digest[trace.SHA256] = strings.Repeat("0", 64)
		return parsed(t, first)
	default:
		t.Fatalf("fault %q", c.Fault)
		return nil
	}
}

// export checks the expectations of a provenance case about statements.
func (c *testCase) export(t *testing.T, first *trace.Trace) {
	data, err := first.Encode()
	require.NoError(t, err)
	statements := [][]byte{}
	if strings.Contains(c.Cmd, "slsa-v1") {
		data, err := provenance.Statement(
			first,
			provenance.Config{TraceName: "trace.json", TraceDigest: fmt.Sprintf("%x", sha256.Sum256(data))},
		)
		require.NoError(t, err)
		statements = append(statements, data)
	} else {
		links, err := provenance.Links(first, nil)
		require.NoError(t, err)
		require.Len(t, links, c.Expect.FilesCount)
		statements = append(statements, links[0].Data)
	}
	for _, data := range statements {
		var tree any
		require.NoError(t, json.Unmarshal(data, &tree))
		for path, want := range c.Expect.JSON {
			require.Equal(t, want, at(t, tree, path))
		}
		for _, path := range c.Expect.JSONPresent {
			require.NotEmpty(t, fmt.Sprint(at(t, tree, path)))
		}
	}
}

// at returns the value at predicate.materials[0].digest, for example.
func at(t *testing.T, tree any, path string) any {
	t.Helper()
	for _, key := range strings.Split(pointer(path), "/")[1:] {
		switch v := tree.(type) {
		case map[string]any:
			require.Contains(t, v, key, path)
			tree = v[key]
		case []any:
			require.NotEmpty(t, v, path)
			tree = v[0] // the only one that cases name
		default:
			t.Fatalf("nothing at %s", path)
		}
	}
	return tree
}
