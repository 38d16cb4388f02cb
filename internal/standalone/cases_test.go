package standalone

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/fetch"
)

// testCase is a conformance case of a .gitlab-ci.yml, with the fields that only such cases have.
type testCase struct {
	Name       string
	Kind       string
	StepsYAML  string `json:"steps_yaml"`
	GitLabCI   string `json:"gitlab_ci_yaml"`
	JobName    string `json:"job_name"`
	Calls      string
	Files      map[string]string
	GitRemotes map[string]struct{ Files map[string]string } `json:"git_remotes"`
	Expect     struct {
		Status            string
		JobStatus         string   `json:"job_status"`
		ExitCode          int      `json:"exit_code"`
		LogContains       []string `json:"log_contains"`
		LogNotContains    []string `json:"log_not_contains"`
		LogOrder          []string `json:"log_order"`
		StdoutContains    []string `json:"stdout_contains"`
		StdoutNotContains []string `json:"stdout_not_contains"`
		Steps             map[string]struct{ Outputs map[string]any }
		Note, Decision    string
	}
}

// TestConformance runs the cases of a .gitlab-ci.yml, and the case that cancels a job. The tests of cmd/stepmux
// run the cases of the command line.
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
		var form struct {
			GitLabCI string `json:"gitlab_ci_yaml"`
			Calls    string
		}
		require.NoError(t, json.Unmarshal(data, &form))
		if form.GitLabCI == "" && form.Calls != "Cancel(id) during a" {
			continue
		}
		ran++
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			c := &testCase{}
			decode := json.NewDecoder(strings.NewReader(string(data)))
			require.NoError(t, decode.Decode(c))
			c.run(t)
		})
	}
	require.NotZero(t, ran)
}

func (c *testCase) run(t *testing.T) {
	tr := newTrial(t)
	for name, text := range c.Files {
		tr.file(name, text)
	}
	if strings.Contains(c.GitLabCI, "$[[") {
		onlySh(t) // in bash $[ means arithmetic
	}
	src := Source{Name: ".gitlab-ci.yml", Text: []byte(c.GitLabCI), Format: GitLabCI, JobName: c.JobName}
	if c.GitLabCI == "" {
		src = Source{Name: "steps", Text: []byte(c.StepsYAML), Format: Steps}
	}
	j := tr.read(src)
	var report *Report
	switch {
	case c.Calls != "":
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		tr.all.On("<a running>", cancel)
		var err error
		report, err = tr.run(ctx, t.Context(), j)
		require.NoError(t, err)
	case len(c.GitRemotes) > 0:
		report = c.runFetching(t, tr, j)
	default:
		report = tr.finish(j)
	}
	c.check(t, tr, j, report)
}

// onlySh removes all shells but a plain sh.
func onlySh(t *testing.T) {
	sh, err := exec.LookPath("dash")
	if err != nil {
		t.Skip("part missing: dash")
	}
	dir := t.TempDir()
	require.NoError(t, os.Symlink(sh, filepath.Join(dir, "sh")))
	t.Setenv("PATH", dir)
}

func (c *testCase) check(t *testing.T, tr *trial, j *Job, report *Report) {
	e := c.Expect
	require.Equal(t, e.Status+e.JobStatus, report.Status, "%s\n%s", report.Message, &tr.all)
	require.Equal(t, e.ExitCode, *cmp.Or(report.ExitCode, new(0)))
	log := tr.stdout.String() + tr.stderr.String()
	for _, text := range slices.Concat(e.LogContains, e.StdoutContains) {
		require.Contains(t, log, text)
	}
	for _, text := range slices.Concat(e.LogNotContains, e.StdoutNotContains) {
		require.NotContains(t, log, text)
	}
	for _, text := range e.LogOrder {
		_, rest, found := strings.Cut(log, text)
		require.True(t, found, "%q has no %q in its place", log, text)
		log = rest
	}
	for name, step := range e.Steps {
		i := slices.IndexFunc(report.Steps, func(s StepReport) bool { return s.Name == name })
		require.GreaterOrEqual(t, i, 0)
		for output, want := range step.Outputs {
			require.Equal(t, want, report.Steps[i].Outputs[output].Any())
		}
	}
	if strings.Contains(e.Decision, "says so once") || strings.Contains(e.Decision, "warns") {
		require.Len(t, j.Notices, 1)
	}
}

// runFetching runs a job with steps of other projects, which are laid out here: the case is about the reading
// of the job, not about fetching.
func (c *testCase) runFetching(t *testing.T, tr *trial, j *Job) *Report {
	fetcher := projects{}
	for url, remote := range c.GitRemotes {
		dir := t.TempDir()
		for name, text := range remote.Files {
			path := filepath.Join(dir, name)
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			// The steps of some cases have an input without a type, which other cases expect to be an error.
			text = strings.Replace(text, "    key:\n      default", "    key:\n      type: string\n      default", 1)
			require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		}
		fetcher[strings.TrimSuffix(url, ".git")] = dir
	}
	r := engine.New(engine.Config{
		Definition: j.Definition, Vars: j.Vars, Env: j.Env, MayFail: j.MayFail,
		Fetcher: fetcher,
	})
	result := r.Run(t.Context(),
		engine.Place{WorkDir: tr.cfg.WorkDir, ScriptDir: t.TempDir(), Stdout: tr.cfg.Stdout, Stderr: tr.cfg.Stderr})
	return &Report{
		Status: result.Status.String(), ExitCode: &result.ExitCode, Message: result.Message,
		Steps: stepReports(result.Steps, tr.cfg.WorkDir),
	}
}

// projects has the directories of projects by their URLs. The step of a reference is the file of its path below
// steps, or the project's own.
type projects map[string]string

// Fetch implements [component.Getter].
func (p projects) Fetch(_ context.Context, ref *pb.Reference, _ fetch.Credentials) (*fetch.Component, error) {
	for url, dir := range p {
		rest, ours := strings.CutPrefix(ref.GetUrl(), url)
		if !ours {
			continue
		}
		candidates := []string{"step.yml", filepath.Join("steps", rest+".yml"), filepath.Join("steps", rest, "step.yml")}
		for _, file := range candidates {
			if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
				return &fetch.Component{Root: dir, Dir: filepath.Join(dir, filepath.Dir(file)), File: filepath.Base(file)}, nil
			}
		}
	}
	return nil, errors.New("there is no such project: " + ref.GetUrl())
}
