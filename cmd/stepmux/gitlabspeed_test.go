//go:build gitlab

package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/stepmux/stepmux/internal/testing/gitlabtest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/internal/testing/stockmanager"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
)

// gitLabRunner starts a fake and a manager that takes its jobs, on VMs with so many slots each.
func gitLabRunner(t *testing.T, cfg gitlabtest.Config, vms, slots int) (*gitlabtest.Fake, string, *serversRunner) {
	t.Helper()
	fake := gitlabtest.New(cfg)
	url := fake.Serve(t)
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(token, []byte(gitlabtest.RunnerToken), 0o600))
	return fake, url, serveInventory(t, dir, slotted(t, dir, vms, slots),
		fmt.Sprintf("gitlab: {name: lab, url: %q, token-file: %s}\n", url, token))
}

// slotted writes an inventory of VMs with so many slots each.
func slotted(t *testing.T, dir string, vms, slots int) (inventory string) {
	t.Helper()
	inventory, _ = newInventory(t, dir, vms)
	text, err := os.ReadFile(inventory)
	require.NoError(t, err)
	text = bytes.ReplaceAll(text, []byte("capacity: 4"), fmt.Appendf(nil, "capacity: %d", slots))
	require.NoError(t, os.WriteFile(inventory, text, 0o600))
	return inventory
}

// plainJob is a job without sources.
func plainJob(url string, n int, lines ...string) map[string]any {
	job := countedJob(url, "", n)
	job["steps"] = []any{map[string]any{"name": "script", "when": "on_success", "script": lines}}
	return job
}

// endOf waits for the end of a job.
func endOf(t *testing.T, fake *gitlabtest.Fake, id int64) gitlabtest.Job {
	t.Helper()
	require.Eventually(t, func() bool { return fake.Job(id).Final > 0 }, bound, 5*time.Millisecond, "%s",
		fake.Job(id).Trace)
	got := fake.Job(id)
	require.Equal(t, gitlabtest.Success, got.Status, "%s", got.Trace)
	return got
}

var printed = regexp.MustCompile(`\bat (\d{16,})`)

// The first line of a job is at the server soon, and the next pieces keep the server's interval: not more calls than by
// GitLab Runner's rule, which is imitated here: a piece every 3 s while there is something new, and the rest at the
// end. STEPMUX_GITLAB_ROUNDS is how often.
func TestMeasureGitLabFirstLine(t *testing.T) {
	const interval = 3 * time.Second
	rounds := numberFrom(t, "STEPMUX_GITLAB_ROUNDS", 3)
	fake, url, _ := gitLabRunner(t, gitlabtest.Config{Interval: interval}, 1, 4)
	var first []time.Duration
	for i := range rounds + 1 {
		id := fake.Add(plainJob(url, i, "echo at $(date +%s%N)", "sleep 1"))
		got := endOf(t, fake, id)
		at, err := strconv.ParseInt(printed.FindStringSubmatch(string(got.Trace))[1], 10, 64)
		require.NoError(t, err)
		pieces := piecesOf(fake, id)
		require.NotEmpty(t, pieces)
		sent := pieces[0]
		for _, c := range fake.Calls() { // the piece that has the line
			if c.Method == http.MethodPatch && strings.Contains(c.Path, fmt.Sprintf("jobs/%d/", id)) &&
				printed.Match(c.Body) {
				sent = c.At
				break
			}
		}
		if i > 0 { // the first one connects
			first = append(first, sent.Sub(time.Unix(0, at)))
		}
	}
	id := fake.Add(plainJob(url, 0, "for i in $(seq 100); do echo line $i; sleep 0.6; done"))
	endOf(t, fake, id)
	pieces := piecesOf(fake, id)
	least := time.Hour
	for i := 1; i+1 < len(pieces); i++ { // the last one has the rest, at once
		least = min(least, pieces[i].Sub(pieces[i-1]))
	}
	rule := int(pieces[len(pieces)-1].Sub(pieces[0])/interval) + 1
	worst := first[0]
	for _, d := range first {
		worst = max(worst, d)
	}
	t.Logf("first line to the piece with it, of %d: median %v, worst %v; pieces of a job of 60 s: %d, least pause %v, by "+
		"the rule %d: %.2f", rounds, median(first), worst, len(pieces), least, rule, float64(len(pieces))/float64(rule))
	require.LessOrEqual(t, median(first), 500*time.Millisecond)
	require.Greater(t, least, interval-100*time.Millisecond, "the way of a call may take longer than that of the next one")
	require.LessOrEqual(t, float64(len(pieces)), 1.1*float64(rule))
}

// piecesOf returns when the pieces of a trace came.
func piecesOf(fake *gitlabtest.Fake, id int64) (at []time.Time) {
	for _, c := range fake.Calls() {
		if c.Method == http.MethodPatch && strings.Contains(c.Path, fmt.Sprintf("jobs/%d/", id)) {
			at = append(at, c.At)
		}
	}
	return at
}

// STEPMUX_GITLAB_MEASURED jobs on 16 slots of 4 VMs, by the manager that takes them itself, and by the custom executor,
// which our imitation of GitLab Runner drives: it stores traces and results nowhere, and asks no server.
func TestMeasureGitLabJobs(t *testing.T) {
	const vms, slots = 4, 4
	jobs, rounds := numberFrom(t, "STEPMUX_GITLAB_MEASURED", 100), numberFrom(t, "STEPMUX_GITLAB_ROUNDS", 1)
	var ours, peer []time.Duration
	for range (rounds + 2) / 3 {
		ours = append(ours, byTheDoor(t, vms, slots, jobs))
		peer = append(peer, byTheExecutor(t, vms, slots, jobs))
	}
	ratio := median(ours).Seconds() / median(peer).Seconds()
	t.Logf("%d jobs on %d slots of %d VMs, median of %d: %v, by the custom executor %v: %.2f", jobs, vms*slots, vms,
		len(ours), median(ours), median(peer), ratio)
	require.LessOrEqual(t, ratio, 0.8) // the goal is 0.5
}

func byTheDoor(t *testing.T, vms, slots, jobs int) time.Duration {
	t.Helper()
	fake, url, m := gitLabRunner(t, gitlabtest.Config{Interval: 3 * time.Second}, vms, slots)
	defer m.kill()
	began := time.Now()
	for i := range jobs {
		fake.Add(plainJob(url, i, `echo "Running on $(hostname)..."`, "echo hello", "echo after"))
	}
	require.Eventually(t, func() bool {
		calls := 0
		for _, c := range fake.Calls() {
			if c.Method == http.MethodPut && bytes.Contains(c.Body, []byte(`"success"`)) && c.Status == http.StatusOK {
				calls++
			}
		}
		return calls >= jobs
	}, 5*time.Minute, 20*time.Millisecond)
	took := time.Since(began)
	for id := range int64(jobs) {
		require.Equal(t, gitlabtest.Success, fake.Job(id+1).Status)
	}
	return took
}

func byTheExecutor(t *testing.T, vms, slots, jobs int) time.Duration {
	t.Helper()
	dir := t.TempDir()
	m := serveInventory(t, dir, slotted(t, dir, vms, slots), "")
	defer m.kill()
	program := runnertest.CustomExecutor(t)
	c := &stockmanager.Custom{
		ConfigExec: program, PrepareExec: program, RunExec: program, CleanupExec: program,
		ConfigArgs: []string{"config"}, PrepareArgs: []string{"prepare"}, RunArgs: []string{"run"},
		CleanupArgs: []string{"cleanup"}, Env: []string{"STEPMUX_MANAGER=" + m.socket},
		BuildsDir: t.TempDir(), CacheDir: t.TempDir(), Temp: t.TempDir(),
	}
	began := time.Now()
	var all errgroup.Group
	all.SetLimit(vms * slots)
	for i := range jobs {
		all.Go(func() error {
			log := new(sshtest.Log)
			got := c.Execute(t.Context(), stockmanager.CustomJob{
				ID: int64(i + 1), Timeout: time.Hour, Log: log,
				Variables: []*runnerproto.Variable{{Key: "CI_JOB_ID", Value: strconv.Itoa(i + 1)}},
				Stages: []stockmanager.CustomStage{
					{Name: "prepare_script", Script: `echo "Running on $(hostname)..."`},
					{Name: "build_script", Script: "echo hello"},
					{Name: "after_script", Script: "echo after", Always: true},
					{Name: "cleanup_file_variables", Script: "true", Always: true},
				},
			})
			if got.Reason != "" || !strings.Contains(log.String(), "\nafter\n") {
				return fmt.Errorf("job %d: %+v: %s", i, got, log)
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
	return time.Since(began)
}

// 100 running jobs whose logs have 10 MB each: how much more memory the manager uses than when it is idle.
func TestMeasureGitLabMemory(t *testing.T) {
	const jobs, megabytes = 100, 10
	fake, url, m := gitLabRunner(t, gitlabtest.Config{Interval: 3 * time.Second}, 1, jobs)
	endOf(t, fake, fake.Add(plainJob(url, 0, "echo warm"))) // it has its connection
	idle := pssOf(t, m.cmd.Process.Pid)
	end := filepath.Join(t.TempDir(), "end")
	var ids []int64
	for i := range jobs {
		ids = append(ids, fake.Add(plainJob(url, i, fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x | fold -w 99",
			megabytes*1_000_000), "while ! test -e "+end+"; do sleep 1; done")))
	}
	most := idle
	began := time.Now()
	require.Eventually(t, func() bool {
		most = max(most, pssOf(t, m.cmd.Process.Pid))
		have := 0
		for _, id := range ids {
			if fake.Size(id) >= megabytes*1_000_000 {
				have++
			}
		}
		return have == jobs
	}, 10*time.Minute, 200*time.Millisecond)
	took := time.Since(began)
	wait(t, time.Minute) // the memory of the burst is returned
	used := pssOf(t, m.cmd.Process.Pid)
	t.Logf("memory of the manager: %d MiB idle, %d MiB with %d running jobs of %d MB of log: %d MiB more; at most %d MiB "+
		"while the logs came, in %v", idle>>20, used>>20, jobs, megabytes, (used-idle)>>20, most>>20, took.Round(time.Second))
	require.NoError(t, os.WriteFile(end, nil, 0o600))
	for _, id := range ids {
		endOf(t, fake, id)
	}
	require.LessOrEqual(t, (used-idle)>>20, int64(100)) // the goal is 40
}
