package manager_test

import (
	"archive/zip"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/manager/gitlabdoor"
	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	"github.com/stepmux/stepmux/internal/testing/gitlabtest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// gitLab is a manager that takes jobs from a fake server.
type gitLab struct {
	*running
	fake  *gitlabtest.Fake
	url   string
	close func() // ends the door, before the manager
}

// serveFake starts a fake server.
func serveFake(t *testing.T, cfg gitlabtest.Config) (fake *gitlabtest.Fake, url string) {
	t.Helper()
	if cfg.Interval == 0 {
		cfg.Interval = time.Second
	}
	fake = gitlabtest.New(cfg)
	server := httptest.NewServer(fake)
	t.Cleanup(func() {
		fake.Close()
		server.Close()
	})
	return fake, server.URL
}

// serveGitLab opens a door of a manager for a server.
func serveGitLab(t *testing.T, m *running, fake *gitlabtest.Fake, url string) *gitLab {
	t.Helper()
	cfg := gitlabdoor.DoorConfig{
		Name: "lab", URL: url, Token: func() (string, error) { return gitlabtest.RunnerToken, nil },
	}
	require.NoError(t, cfg.Check())
	ctx, cancel := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := m.m.ServeGitLab(ctx, cfg); err != nil {
			t.Error(err)
		}
	})
	g := &gitLab{m, fake, url, func() {
		cancel()
		serving.Wait()
	}}
	t.Cleanup(g.close)
	return g
}

// ended waits for the end of a job.
func (g *gitLab) ended(id int64) gitlabtest.Job {
	g.t.Helper()
	require.Eventually(g.t, func() bool {
		status := g.fake.Job(id).Status
		return status == gitlabtest.Success || status == gitlabtest.Failed || status == gitlabtest.Canceled
	}, sshtest.Bound, time.Millisecond, "%s", g.fake.Job(id).Trace)
	return g.fake.Job(id)
}

// reports waits for a text in the trace of a job.
func (g *gitLab) reports(id int64, text string) {
	g.t.Helper()
	require.Eventually(g.t, func() bool { return bytes.Contains(g.fake.Job(id).Trace, []byte(text)) }, sshtest.Bound,
		time.Millisecond)
}

// scriptJob is the answer with a job of a project without sources.
func scriptJob(url string, lines ...string) map[string]any {
	return map[string]any{
		"job_info": map[string]any{
			"name": "build", "stage": "test", "pipeline_id": 5, "project_id": 3, "project_full_path": "group/app",
			"project_name": "app",
		},
		"git_info":    map[string]any{"repo_url": url + "/group/app.git", "sha": strings.Repeat("1", 40)},
		"runner_info": map[string]any{"timeout": 3600},
		"variables": []any{
			map[string]any{"key": "GIT_STRATEGY", "value": "none"}, map[string]any{"key": "CI_SERVER_URL", "value": url},
		},
		"steps": []any{map[string]any{"name": "script", "script": lines, "when": "on_success"}},
	}
}

func with(job map[string]any, vars ...string) map[string]any {
	all := job["variables"].([]any)
	for i := 0; i+1 < len(vars); i += 2 {
		all = append(all, map[string]any{"key": vars[i], "value": vars[i+1], "masked": strings.Contains(vars[i], "TOKEN")})
	}
	job["variables"] = all
	return job
}

// A job has its sources by git, the artifacts of another job, its own variables, and gives artifacts. The server gets
// each byte of its trace once.
func TestAJobOfGitLabRunsAndIsReported(t *testing.T) {
	t.Parallel()
	for _, acknowledges := range []bool{false, true} {
		t.Run(fmt.Sprint(acknowledges), func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			repo := fetchtest.NewRepository(t, filepath.Join(root, "group", "app.git"))
			commit := repo.Commit("main", fetchtest.Texts(map[string]string{"file": "from git\n"}))
			git := fetchtest.ServeGit(t, root)
			fake, url := serveFake(t, gitlabtest.Config{Acknowledges: acknowledges})
			job := with(scriptJob(url, "cat file", "echo \"$NAME $CI_JOB_TOKEN\"", "git branch -r", "echo made > out.txt"),
				"GIT_STRATEGY", "fetch", "NAME", "of ${CI_SERVER}")
			job["git_info"] = map[string]any{
				"repo_url": git.URL + "/group/app.git", "sha": commit, "depth": 20,
				"refspecs": []string{"+refs/heads/main:refs/remotes/origin/main"},
			}
			job["steps"] = append(job["steps"].([]any), map[string]any{
				"name": "after_script", "script": []string{"echo after $CI_JOB_STATUS"}, "when": "always",
			})
			job["artifacts"] = []any{map[string]any{
				"paths": []string{"*.txt"}, "artifact_type": "archive", "artifact_format": "zip", "when": "always",
			}}
			id := fake.Add(job)
			git.User, git.Password = "gitlab-ci-token", fake.Job(id).Token
			g := serveGitLab(t, withPipelines(newFleet(t)).start(t), fake, url)
			got := g.ended(id)
			require.Equal(t, gitlabtest.Success, got.Status, "%s", got.Trace)
			text := string(got.Trace)
			for _, want := range []string{
				"from git\n", "of yes [MASKED]\n", "origin/main\n", "after success\n", "Job succeeded",
			} {
				require.Contains(t, text, want)
			}
			require.NotContains(t, text, got.Token)
			require.Equal(t, 1, got.Final)
			require.Equal(t, 1, got.Taken)
			packed := got.Artifacts["archive"]
			require.NotEmpty(t, packed, "%s", text)
			archive, err := zip.NewReader(bytes.NewReader(packed), int64(len(packed)))
			require.NoError(t, err)
			made, err := archive.Open("out.txt")
			require.NoError(t, err)
			content, err := io.ReadAll(made)
			require.NoError(t, err)
			require.Equal(t, "made\n", string(content))
			require.Empty(t, g.m.KeptTasks(t, "gitlab.lab"), "nothing of it is kept")
		})
	}
}

func TestJobsOfGitLabEndAsTheyShould(t *testing.T) {
	t.Parallel()
	fake, url := serveFake(t, gitlabtest.Config{})
	g := serveGitLab(t, withPipelines(newFleet(t)).start(t), fake, url)
	failed := fake.Add(scriptJob(url, "echo on", "exit 7"))
	late := scriptJob(url, "sleep 600")
	late["runner_info"] = map[string]any{"timeout": 1}
	lateID := fake.Add(late)
	vault := scriptJob(url, "echo never")
	vault["secrets"] = map[string]any{"DB": map[string]any{}}
	vaultID := fake.Add(vault)
	steps := scriptJob(url)
	steps["steps"], steps["run"] = []any{}, `[{"name": "hi", "script": "echo from a step"}]`
	stepsID := fake.Add(steps)

	got := g.ended(failed)
	require.Equal(t, "failed script_failure 7", fmt.Sprintf("%s %s %d", got.Status, got.Reason, got.ExitCode), "%s",
		got.Trace)
	require.Contains(t, string(got.Trace), "ERROR: Job failed: ")
	got = g.ended(lateID)
	require.Equal(t, "failed job_execution_timeout", got.Status+" "+got.Reason, "%s", got.Trace)
	got = g.ended(vaultID)
	require.Equal(t, "failed runner_system_failure", got.Status+" "+got.Reason)
	require.Contains(t, string(got.Trace), "secrets of a vault")
	got = g.ended(stepsID)
	require.Equal(t, gitlabtest.Success, got.Status, "%s", got.Trace)
	require.Contains(t, string(got.Trace), "from a step\n")
}

// A cancel is graceful: the after_script still runs.
func TestAJobThatGitLabCancelsEnds(t *testing.T) {
	t.Parallel()
	fake, url := serveFake(t, gitlabtest.Config{})
	g := serveGitLab(t, withPipelines(newFleet(t)).start(t), fake, url)
	job := scriptJob(url, "echo begins", "while :; do echo on; sleep 0.1; done")
	job["steps"] = append(job["steps"].([]any), map[string]any{
		"name": "after_script", "script": []string{"echo after $CI_JOB_STATUS"}, "when": "always",
	})
	id := fake.Add(job)
	g.reports(id, "begins\n")
	fake.Cancel(id)
	got := g.ended(id)
	require.Equal(t, gitlabtest.Canceled, got.Status)
	require.Contains(t, string(got.Trace), "after canceled\n")
}

// The manager ends while a job runs. The next one reports the rest: each byte is there once.
func TestAJobOfGitLabOutlivesItsManager(t *testing.T) {
	t.Parallel()
	fake, url := serveFake(t, gitlabtest.Config{})
	f := withPipelines(newFleet(t))
	g := serveGitLab(t, f.start(t), fake, url)
	again := filepath.Join(t.TempDir(), "again")
	id := fake.Add(scriptJob(url, "echo be''gins", "while ! test -e "+again+"; do sleep 0.05; done", "seq 2000"))
	g.reports(id, "begins\n")
	g.close()
	g.stop()
	require.NoError(t, os.WriteFile(again, nil, 0o600))
	g = serveGitLab(t, f.start(t), fake, url)
	got := g.ended(id)
	require.Equal(t, gitlabtest.Success, got.Status, "%s", got.Trace)
	require.Equal(t, 1, strings.Count(string(got.Trace), "begins\n"))
	require.Equal(t, 1, strings.Count(string(got.Trace), "\n1999\n2000\n"))
	require.Equal(t, 1, got.Taken)
	require.Equal(t, 1, got.Final)
}

// A token that the server does not know is told, and read again.
func TestATokenThatGitLabDoesNotKnowIsReadAgain(t *testing.T) {
	t.Parallel()
	fake, url := serveFake(t, gitlabtest.Config{})
	var once sync.Once
	fake.Fail(func(req *http.Request) (fault *gitlabtest.Fault) {
		if strings.HasSuffix(req.URL.Path, "jobs/request") {
			once.Do(func() { fault = &gitlabtest.Fault{Status: http.StatusForbidden, Text: `{"message":"403 Forbidden"}`} })
		}
		return fault
	})
	g := serveGitLab(t, withPipelines(newFleet(t)).start(t), fake, url)
	require.Equal(t, gitlabtest.Success, g.ended(fake.Add(scriptJob(url, "echo on"))).Status)
}
