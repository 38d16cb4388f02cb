package manager_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
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

	"github.com/stepmux/stepmux/instance/control"
	"github.com/stepmux/stepmux/instance/manager"
	"github.com/stepmux/stepmux/instance/manager/gitlabdoor"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/standalone/managed"
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
func serveGitLab(
	t *testing.T, m *running, fake *gitlabtest.Fake, url string, change ...func(*gitlabdoor.DoorConfig),
) *gitLab {
	t.Helper()
	cfg := gitlabdoor.DoorConfig{
		Name: "lab", URL: url, Token: func() (string, error) { return gitlabtest.RunnerToken, nil },
	}
	for _, c := range change {
		c(&cfg)
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

// shown returns the text of a trace, which the server can read.
func shown(t *testing.T, job gitlabtest.Job) string {
	t.Helper()
	log, err := gitlabtest.ReadLog(job.Trace)
	require.NoError(t, err, "%s", job.Trace)
	return log.Text
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
			text := shown(t, got)
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
	require.Equal(t, 1, strings.Count(shown(t, got), "\n1999\n2000\n"))
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

// twoMembers starts two managers, which share the VMs.
func (c *cluster) twoMembers(t *testing.T, natsOfFirst string) (a, b *running) {
	t.Helper()
	pipelines := func(cfg *manager.Config) { cfg.Pipelines = managed.Pipelines{} }
	a, b = c.memberWith(t, natsOfFirst, pipelines), c.memberWith(t, c.nats, pipelines)
	a.awaitHeld(1)
	b.awaitHeld(1)
	return a, b
}

// A manager that ends leaves its jobs to the others at once.
func TestTheJobsOfGitLabOfAManagerThatEndsAreReportedByAnother(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	fake, url := serveFake(t, gitlabtest.Config{Acknowledges: true})
	first, second := c.twoMembers(t, c.nats)
	a := serveGitLab(t, first, fake, url)
	again := filepath.Join(t.TempDir(), "again")
	id := fake.Add(scriptJob(a.url, "echo be''gins; while ! test -e "+again+"; do sleep 0.05; done; echo on"))
	a.reports(id, "begins\n")
	b := serveGitLab(t, second, fake, url)
	a.close()
	a.stop()
	require.NoError(t, os.WriteFile(again, nil, 0o600))
	got := b.ended(id)
	require.Equal(t, gitlabtest.Success, got.Status, "%s", got.Trace)
	require.Equal(t, 1, strings.Count(string(got.Trace), "begins\n"), "%s", got.Trace)
	require.Equal(t, 1, got.Final)
}

// Two runners of one manager have limits and numbers of their own, and share its slots. Lists and the page name the
// project, the pipeline and the job of the server.
func TestRunnersOfOneManagerHaveTheirLimits(t *testing.T) {
	t.Parallel()
	f := withPipelines(newFleet(t))
	f.capacity = 4
	m := f.start(t)
	again := filepath.Join(t.TempDir(), "again")
	var doors []*gitLab
	var ids []int64
	for limit := 1; limit <= 2; limit++ {
		fake, url := serveFake(t, gitlabtest.Config{})
		for range 3 {
			ids = append(ids, fake.Add(scriptJob(url, "while ! test -e "+again+"; do sleep 0.01; done")))
		}
		doors = append(doors, serveGitLab(t, m, fake, url, func(cfg *gitlabdoor.DoorConfig) {
			cfg.Name, cfg.Limit = fmt.Sprintf("lab-%d", limit), limit
		}))
	}
	taken := func(g *gitLab) (n int) {
		for id := int64(1); id <= 3; id++ {
			n += g.fake.Job(id).Taken
		}
		return n
	}
	var running []*pb.Build
	require.Eventually(t, func() bool {
		list, err := m.List(t.Context(), &pb.ListRequest{Phase: pb.Build_running})
		require.NoError(t, err)
		running = list.GetBuilds()
		return len(running) == 3
	}, sshtest.Bound, 5*time.Millisecond)
	own := m.submit("true") // the fourth slot is for others
	_, b := m.wait(own, 0)
	require.Empty(t, b.GetResult().GetReason())
	require.Equal(t, []int{1, 2}, []int{taken(doors[0]), taken(doors[1])})
	status, err := m.Status(t.Context(), &pb.StatusRequest{})
	require.NoError(t, err)
	var s control.Status
	require.NoError(t, json.Unmarshal(status.GetJson(), &s))
	require.Len(t, s.Servers, 2)
	for i, server := range s.Servers {
		require.Equal(t, fmt.Sprintf("lab-%d ready %d", i+1, i+1), fmt.Sprint(server.Name, " ", server.State, " ",
			server.Jobs))
	}
	names := map[string]int{}
	for _, b := range running {
		names[b.GetStepsFile()]++
	}
	want := map[string]int{"lab-1/group/app#5/build": 1, "lab-2/group/app#5/build": 2}
	require.Equal(t, want, names)
	require.NoError(t, os.WriteFile(again, nil, 0o600))
	for i, id := range ids {
		require.Equal(t, gitlabtest.Success, doors[i/3].ended(id).Status)
	}
	pipelines, err := m.ListPipelines(t.Context(), &pb.ListPipelinesRequest{})
	require.NoError(t, err)
	require.Len(t, pipelines.GetPipelines(), 6)
	require.Contains(t, want, pipelines.GetPipelines()[0].GetFile())
}

// Jobs of a runner with labels run on the VMs that have them.
func TestJobsOfARunnerWithLabelsRunOnTheirVMs(t *testing.T) {
	t.Parallel()
	f := withPipelines(newFleet(t))
	f.more = sshtest.InProcess(t, embeddedvm.Config{})
	change := f.change
	f.change = func(cfg *manager.Config) {
		change(cfg)
		all := cfg.Group.Instances()
		all[1].Labels, all[1].Capacity = map[string]string{"gpu": "true"}, 1
		require.NoError(t, cfg.Group.Update(all))
	}
	fake, url := serveFake(t, gitlabtest.Config{})
	var ids []int64
	for range 3 {
		ids = append(ids, fake.Add(scriptJob(url, "true")))
	}
	m := f.start(t)
	g := serveGitLab(t, m, fake, url, func(cfg *gitlabdoor.DoorConfig) { cfg.Labels = map[string]string{"gpu": "true"} })
	for _, id := range ids {
		require.Equal(t, gitlabtest.Success, g.ended(id).Status)
	}
	answer, err := m.List(t.Context(), &pb.ListRequest{})
	require.NoError(t, err)
	require.Len(t, answer.GetBuilds(), len(ids))
	for _, b := range answer.GetBuilds() {
		require.Equal(t, "vm-2", b.GetInstance())
	}
}

// The VMs trust the server by the authorities of its entry: git, the transfers of artifacts, and the scripts.
func TestVMsTrustAServerByItsAuthorities(t *testing.T) {
	t.Parallel()
	git, sha, _ := sourcesOf(t)
	sources := httptest.NewTLSServer(git.Config.Handler) // all such servers have the same certificate
	t.Cleanup(sources.Close)
	fake := gitlabtest.New(gitlabtest.Config{Interval: time.Second})
	server := httptest.NewTLSServer(fake)
	t.Cleanup(func() {
		fake.Close()
		server.Close()
	})
	authorities := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	require.NoError(t, os.WriteFile(authorities, text, 0o600))
	job := with(scriptJob(server.URL, "cat file", "grep CERTIFICATE \"$CI_SERVER_TLS_CA_FILE\""), "GIT_STRATEGY", "fetch")
	job["git_info"] = map[string]any{"repo_url": sources.URL + "/group/project.git", "sha": sha}
	job["artifacts"] = []any{
		map[string]any{"paths": []string{"file"}, "artifact_type": "archive", "artifact_format": "zip"},
	}
	id := fake.Add(job)
	m := withPipelines(newFleet(t)).start(t)
	g := serveGitLab(t, m, fake, server.URL, func(cfg *gitlabdoor.DoorConfig) { cfg.Files.CA = authorities })
	got := g.ended(id)
	require.Equal(t, gitlabtest.Success, got.Status, "%s", got.Trace)
	require.Contains(t, shown(t, got), "from git\n")
	require.Contains(t, shown(t, got), "BEGIN CERTIFICATE")
	require.NotEmpty(t, got.Artifacts["archive"])
}
