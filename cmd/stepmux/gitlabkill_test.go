package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/gitlabtest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// gitLabPhase is a phase of a job of GitLab, by the call that shows it: before the server has it, or before the manager
// has the answer.
type gitLabPhase struct {
	name     string
	answered bool
	is       func(method, path string, body []byte) bool
}

func isAsked(_, path string, _ []byte) bool { return strings.HasSuffix(path, "/jobs/request") }

func isPiece(method, _ string, _ []byte) bool { return method == http.MethodPatch }

func isState(states ...string) func(method, path string, body []byte) bool {
	return func(method, _ string, body []byte) bool {
		return method == http.MethodPut && slices.ContainsFunc(states, func(state string) bool {
			return bytes.Contains(body, []byte(`"state":"`+state+`"`))
		})
	}
}

var gitLabPhases = []gitLabPhase{
	{"before it asks", false, isAsked},
	{"asked", true, isAsked},
	{"written", false, isState("pending", "running")},
	{"written, answered", true, isState("pending", "running")},
	{"running", false, isPiece},
	{"running, answered", true, isPiece},
	{"last call", false, isState("success", "failed")},
	{"last call, answered", true, isState("success", "failed")},
}

// gitLabGate is a server in front of another one. It holds back the first call of a phase until the manager is dead.
type gitLabGate struct {
	to http.Handler

	mu        sync.Mutex // guards the following
	phase     *gitLabPhase
	hit, dead chan struct{}
}

// ServeHTTP implements http.Handler.
func (g *gitLabGate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the manager is gone
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	answer := httptest.NewRecorder()
	g.pause(false, r, body, answer)
	g.to.ServeHTTP(answer, r)
	g.pause(true, r, body, answer)
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes()) // the manager may be gone
}

// arm holds the next call of a phase back. hit is closed then; the caller closes dead when the manager is dead.
func (g *gitLabGate) arm(p *gitLabPhase) (hit, dead chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.phase, g.hit, g.dead = p, make(chan struct{}), make(chan struct{})
	return g.hit, g.dead
}

func (g *gitLabGate) pause(answered bool, r *http.Request, body []byte, answer *httptest.ResponseRecorder) {
	g.mu.Lock()
	p, dead := g.phase, g.dead
	hit := p != nil && p.answered == answered && p.is(r.Method, r.URL.Path, body)
	if hit && answered && isAsked("", r.URL.Path, nil) {
		var job struct{ ID int64 }
		_ = json.Unmarshal(answer.Body.Bytes(), &job) // without a job there is none
		hit = job.ID > 0
	}
	if hit {
		g.phase = nil
		close(g.hit)
	}
	g.mu.Unlock()
	if hit {
		<-dead
		panic(http.ErrAbortHandler)
	}
}

// A manager is killed in each phase of a job: each job ends once with the right result, each line of its trace is
// there once and in order, and its commands ran once. On a server that waits for acknowledgements no job is lost.
// Without them the answer that is lost between the server and the disk is, and it is counted. STEPMUX_GITLAB_KILLS is
// how often the manager is killed.
//
//stepmux:faults users | A manager dies in any phase of a job of GitLab: no command runs twice, no line is lost or
//stepmux:more doubled
//stepmux:with instance/manager.TestAJobOfGitLabOutlivesItsManager
func TestAManagerThatIsKilledLosesNoJobOfGitLab(t *testing.T) {
	t.Parallel()
	for _, acknowledges := range []bool{true, false} {
		t.Run(fmt.Sprint(acknowledges), func(t *testing.T) {
			t.Parallel()
			killGitLab(t, acknowledges, numberFrom(t, "STEPMUX_GITLAB_KILLS", len(gitLabPhases)))
		})
	}
}

func killGitLab(t *testing.T, acknowledges bool, kills int) {
	t.Helper()
	fake := gitlabtest.New(gitlabtest.Config{
		Acknowledges: acknowledges, Acknowledge: 3 * time.Second, Interval: time.Second, Hold: time.Second,
	})
	gate := &gitLabGate{to: fake}
	server := httptest.NewServer(gate)
	t.Cleanup(func() {
		fake.Close()
		server.Close()
	})
	dir := t.TempDir()
	ledger, token, file := filepath.Join(dir, "ledger"), filepath.Join(dir, "token"), filepath.Join(dir, "manager.yml")
	require.NoError(t, os.WriteFile(token, []byte(gitlabtest.RunnerToken), 0o600))
	config := fmt.Sprintf("gitlab: {name: lab, url: %q, token-file: %s}\n", server.URL, token)
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	inventory, _ := newInventory(t, dir, 1)
	m := &managerProcess{t: t, socket: filepath.Join(sshtest.SocketDir(t), "m.sock"), patience: bound}
	m.args = []string{
		"manager", "--config", file, "--state", filepath.Join(dir, "state"), "--inventory", inventory, "--socket", m.socket,
	}
	t.Cleanup(func() {
		m.kill()
		if t.Failed() {
			t.Logf("the log of the manager:\n%s", lastOf(&m.stderr))
		}
	})
	m.start()
	var ids []int64
	count := map[string]int{}
	var killed []time.Time
	for i := range kills {
		p := gitLabPhases[i%len(gitLabPhases)]
		hit, dead := gate.arm(&p)
		ids = append(ids, fake.Add(countedJob(server.URL, ledger, i)))
		timer := time.NewTimer(bound)
		select {
		case <-hit:
			count[p.name]++
		case <-timer.C:
			require.Fail(t, "the phase did not come", "%s", p.name)
		}
		timer.Stop()
		killed = append(killed, time.Now())
		m.kill()
		close(dead)
		m.start()
	}
	lost := requireEachOnce(t, fake, ids, ledger, func(id int64) bool {
		return !acknowledges && lostAt(fake.Calls(), id, killed)
	})
	t.Logf("%d kills, %d jobs: %d lost between the question and the disk; kills by phase %v", kills, len(ids), lost, count)
}

// requireEachOnce requires that each job of countedJob has ended once, with its result and each line of its trace, and
// ran once. It returns how many were lost, as isLost says.
func requireEachOnce(
	t *testing.T, fake *gitlabtest.Fake, ids []int64, ledger string, isLost func(id int64) bool,
) (lost int) {
	t.Helper()
	for i, id := range ids {
		got := fake.Job(id)
		require.Eventually(t, func() bool {
			for got = fake.Job(id); got.Retry != 0; got = fake.Job(got.Retry) { // it was not acknowledged
				continue
			}
			return got.Final > 0 || isLost(id)
		}, bound, 100*time.Millisecond, "job %d: %s", i, got.Trace)
		if got.Final == 0 {
			lost++
			continue
		}
		want, reason := gitlabtest.Success, ""
		if i%4 == 3 {
			want, reason = gitlabtest.Failed, "script_failure"
		}
		require.Equal(t, want, got.Status, "job %d: %s", i, got.Trace)
		require.Equal(t, reason, got.Reason, "job %d", i)
		require.Equal(t, 1, got.Final, "job %d", i)
		var lines, wanted []string
		log, err := gitlabtest.ReadLog(got.Trace)
		require.NoError(t, err, "job %d: %s", i, got.Trace)
		for line := range strings.Lines(log.Text) {
			if strings.HasPrefix(line, "line ") {
				lines = append(lines, line)
			}
		}
		for n := 1; n <= 60; n++ {
			wanted = append(wanted, fmt.Sprintf("line %d of %d\n", n, i))
		}
		require.Equal(t, wanted, lines, "job %d", i)
	}
	ran, err := os.ReadFile(ledger)
	require.NoError(t, err)
	times := map[string]int{}
	for _, line := range strings.Fields(string(ran)) {
		times[line]++
	}
	require.Len(t, times, len(ids)-lost)
	for n, often := range times {
		require.Equal(t, 1, often, "job %s", n)
	}
	return lost
}

// lostAt reports whether the answer with a job was on its way when the manager was killed, and no manager has told
// about the job.
func lostAt(calls []gitlabtest.Call, id int64, kills []time.Time) bool {
	var given time.Time
	for _, c := range calls {
		var job struct{ ID int64 }
		if strings.HasPrefix(c.Path+"/", fmt.Sprintf("jobs/%d/", id)) {
			return false
		}
		if c.Path == "jobs/request" && json.Unmarshal(c.Text, &job) == nil && job.ID == id {
			given = c.At
		}
	}
	return slices.ContainsFunc(kills, func(at time.Time) bool { return at.Sub(given).Abs() < 2*time.Second }) &&
		time.Since(given) > 10*time.Second
}

// countedJob writes a number into a ledger, and lines into its trace. Each fourth one fails.
func countedJob(url, ledger string, n int) map[string]any {
	return map[string]any{
		"job_info": map[string]any{
			"name": "count", "stage": "test", "pipeline_id": n, "project_full_path": "group/app", "project_name": "app",
		},
		"git_info":    map[string]any{"repo_url": url + "/group/app.git", "sha": strings.Repeat("1", 40)},
		"runner_info": map[string]any{"timeout": 600},
		"variables":   []any{map[string]any{"key": "GIT_STRATEGY", "value": "none"}},
		"steps": []any{map[string]any{"name": "script", "when": "on_success", "script": []string{
			fmt.Sprintf("echo %d >>%s", n, ledger),
			fmt.Sprintf(`for i in $(seq 60); do echo "line $i of %d"; sleep 0.02; done`, n),
			fmt.Sprintf("exit %d", n%4/3),
		}}},
	}
}
