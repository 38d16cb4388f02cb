package action

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	"github.com/stepmux/stepmux/remote/step/annotation"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// caseFile is a file of a case: a text, or a text with a mode.
type caseFile struct{ Mode, Content string }

func (f *caseFile) UnmarshalJSON(data []byte) error {
	if json.Unmarshal(data, &f.Content) == nil {
		return nil
	}
	type plain caseFile
	return json.Unmarshal(data, (*plain)(f))
}

// testCase is a conformance case.
type testCase struct {
	Name       string
	Workflow   string `json:"workflow_steps_yaml"`
	Steps      string `json:"steps_yaml"`
	Requires   []string
	Files      map[string]caseFile
	GitRemotes map[string]struct {
		Tag   string
		Files map[string]string
	} `json:"git_remotes"`
	Env    map[string]string
	JobEnv map[string]string `json:"job_env"`
	Expect struct {
		Status           string
		LogContains      []string          `json:"log_contains"`
		LogNotContains   []string          `json:"log_not_contains"`
		LogOrder         []string          `json:"log_order"`
		ErrorContains    []string          `json:"error_contains"`
		TraceNotContains []string          `json:"trace_not_contains"`
		Trace            map[string]string `json:"trace"`
		Steps            map[string]struct{ Outputs map[string]string }
		Annotations      []annotation.Annotation
	}
}

// TestConformance runs the cases of actions.
func TestConformance(t *testing.T) {
	root := os.Getenv("STEPMUX_CASES")
	if root == "" {
		t.Skip("part missing: STEPMUX_CASES, the folder of the conformance cases")
	}
	found, err := filepath.Glob(filepath.Join(root, "actions", "*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, found)
	for _, file := range found {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			c := &testCase{}
			require.NoError(t, json.Unmarshal(data, c))
			c.run(t)
		})
	}
}

func (c *testCase) run(t *testing.T) {
	tr := newTrial(t)
	for _, f := range c.Files {
		if strings.Contains(f.Content, "using: node") {
			needs(t, "node")
		}
	}
	for _, part := range c.Requires {
		c.require(t, tr, part)
	}
	for name, f := range c.Files {
		tr.file(name, f.Content)
		if f.Mode == "0755" {
			require.NoError(t, os.Chmod(filepath.Join(tr.place.WorkDir, name), 0o755))
		}
	}
	mirror := t.TempDir()
	for url, remote := range c.GitRemotes {
		r := fetchtest.NewRepository(t, filepath.Join(mirror, strings.TrimPrefix(url, "https://github.com/")))
		r.Commit("main", fetchtest.Texts(remote.Files))
		r.Git("tag", remote.Tag, "main")
	}
	tr.remotes(mirror)
	for name, value := range c.Env {
		value = strings.NewReplacer("@PATH@", os.Getenv("PATH"), "@ROOT@", tr.place.WorkDir).Replace(value)
		tr.cfg.RunnerEnv = append(tr.cfg.RunnerEnv, name+"="+value)
		if name == "DOCKER_HOST" { // the case gives it to the job; no variable of the runner's own reaches steps
			tr.cfg.Env = map[string]string{name: value}
		}
	}
	if c.Workflow != "" {
		text := "on: push\njobs:\n  test:\n"
		if len(c.JobEnv) > 0 {
			env, err := json.Marshal(c.JobEnv)
			require.NoError(t, err)
			text += "    env: " + string(env) + "\n"
		}
		tr.text(text + "    steps:\n" + indent(c.Workflow, "      "))
	} else {
		tr.steps(c.Steps)
	}
	c.check(t, tr, tr.run())
}

// require gets a part that the case needs.
func (c *testCase) require(t *testing.T, tr *trial, part string) {
	switch {
	case strings.HasPrefix(part, "npm install"):
		needs(t, "npm")
		dir := filepath.Join(tr.place.WorkDir, "tk")
		require.NoError(t, os.MkdirAll(dir, 0o755))
		install := exec.Command("npm", "install", "--no-audit", "--no-fund", "@actions/core@1")
		install.Dir = dir
		if out, err := install.CombinedOutput(); err != nil {
			t.Skipf("part missing: @actions/core from npm: %s", out)
		}
	case part == "docker":
		t.Setenv("DOCKER_HOST", dockerHost(t))
		tr.cfg.Env = map[string]string{"DOCKER_HOST": os.Getenv("DOCKER_HOST")}
	case strings.HasPrefix(part, "image alpine:3.22"):
		provideImage(t, "alpine:3.22")
	default:
		t.Fatalf("the case requires %q", part)
	}
}

func (c *testCase) check(t *testing.T, tr *trial, res engine.Result) {
	e := c.Expect
	log := tr.log.String()
	require.Equal(t, e.Status, res.Status.String(), "%s\n%s", res.Message, log)
	data, err := json.Marshal(tr.trace)
	require.NoError(t, err)
	all := string(data)
	steps := res.Steps
	if c.Workflow != "" {
		steps = res.Steps[0].Steps
	}
	// The house's word for a mask; and the shell of a case takes the quotes from the JSON that it prints.
	shown := strings.NewReplacer("***", "[MASKED]", `{"a":1}`, "{a:1}")
	for _, text := range e.LogContains {
		require.Contains(t, log, shown.Replace(text))
	}
	for _, text := range e.LogNotContains {
		require.NotContains(t, log, text)
	}
	for rest, i := log, 0; i < len(e.LogOrder); i++ {
		_, after, found := strings.Cut(rest, e.LogOrder[i])
		require.True(t, found, "%q is not in its place: %s", e.LogOrder[i], log)
		rest = after
	}
	for _, text := range e.ErrorContains {
		require.Contains(t, res.Message, text)
	}
	for _, text := range e.TraceNotContains {
		require.NotContains(t, all, text)
	}
	for path, want := range e.Trace {
		require.Equal(t, "steps[0].summary", path)
		require.Equal(t, want, steps[0].Summary)
	}
	for name, step := range e.Steps {
		i := slices.IndexFunc(steps, func(s engine.StepResult) bool { return s.Name == name })
		require.GreaterOrEqual(t, i, 0)
		require.Equal(t, step.Outputs, texts(steps[i].Outputs))
	}
	var annotations []annotation.Annotation
	var collect func([]engine.StepResult)
	collect = func(list []engine.StepResult) {
		for _, s := range list {
			annotations = append(annotations, s.Annotations...)
			collect(s.Steps)
		}
	}
	collect(steps)
	for _, want := range e.Annotations {
		require.True(t, slices.ContainsFunc(annotations, func(a annotation.Annotation) bool {
			return a.Level == want.Level && a.File == want.File && a.Line == want.Line &&
				(want.Title == "" || a.Title == want.Title) && (want.Message == "" || a.Message == want.Message)
		}), "%v is not in %v", want, annotations)
	}
}

// provideImage imports an image with a busybox, if it is missing.
func provideImage(t *testing.T, name string) {
	t.Helper()
	if exec.Command("docker", "image", "inspect", name).Run() == nil {
		return
	}
	// An image without a registry: a busybox, with its libraries if it has some, in the place of all programs.
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "bin"), 0o755))
	data, err := os.ReadFile(needs(t, "busybox"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "bin", "busybox"), data, 0o755))
	for _, program := range []string{"sh", "echo", "pwd", "cat", "true", "ls", "env"} {
		require.NoError(t, os.Symlink("busybox", filepath.Join(dir, "bin", program)))
	}
	libraries, _ := exec.Command("ldd", needs(t, "busybox")).Output() // an error for a static one
	for _, word := range strings.Fields(string(libraries)) {
		if data, err := os.ReadFile(word); err == nil && filepath.IsAbs(word) {
			require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(word)), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(dir, word), data, 0o755))
		}
	}
	tar := exec.Command("sh", "-c", "tar -C \"$1\" -c . | docker import - \"$2\"", "sh", dir, name)
	out, err := tar.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
