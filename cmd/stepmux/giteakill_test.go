//go:build gitea

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/giteatest"
)

// about is what the calls of a runner say of a task.
type about struct {
	TaskID string `json:"taskId"`
	NoMore bool   `json:"noMore"`
	Rows   []any  `json:"rows"`
	State  struct {
		ID     string `json:"id"`
		Result string `json:"result"`
	} `json:"state"`
	Task struct { // of an answer
		ID      string         `json:"id"`
		Context map[string]any `json:"context"`
	} `json:"task"`
	after bool // the server has given a task before: that is kept when it is asked again
}

// killPhases are the phases of a task in which the manager is killed, by the call that shows them: before the server
// has it, or before the manager has the answer.
var killPhases = []struct {
	name     string
	answered bool
	is       func(method string, in, out about) bool
}{
	{"before it asks", false, func(method string, _, _ about) bool { return method == "FetchTask" }},
	{"asked", true, func(method string, _, out about) bool { return method == "FetchTask" && out.Task.ID != "" }},
	{"written", false, func(method string, in, _ about) bool { return method == "FetchTask" && in.after }},
	{"submitted", false, func(method string, in, _ about) bool { return method == "UpdateTask" && !isFinal(in) }},
	{"running", false, func(method string, in, _ about) bool { return len(in.Rows) > 0 && !in.NoMore }},
	{"running, answered", true, func(method string, in, _ about) bool { return len(in.Rows) > 0 && !in.NoMore }},
	{"reporting", false, func(method string, in, _ about) bool { return in.NoMore }},
	{"reporting, answered", true, func(method string, in, _ about) bool { return in.NoMore }},
	{"last call", false, func(method string, in, _ about) bool { return method == "UpdateTask" && isFinal(in) }},
	{"last call, answered", true, func(method string, in, _ about) bool { return method == "UpdateTask" && isFinal(in) }},
	{"at random", false, nil},
}

// runningPhase is the first phase that comes when all waiting jobs were taken.
const runningPhase = 4

func isFinal(in about) bool { return in.State.Result != "" && in.State.Result != "RESULT_UNSPECIFIED" }

// parsed is what a call and its answer say.
func parsed(c giteatest.Call) (in, out about) {
	_ = json.Unmarshal(c.Request, &in) // an answer that is none has nothing
	_ = json.Unmarshal(c.Response, &out)
	return in, out
}

// killed is how often the manager was killed, and when.
type killed struct {
	mu    sync.Mutex // guards the following
	times []time.Time
}

// at lets jobs begin, and kills the manager in a phase of one. It returns false if the phase did not come.
func (k *killed) at(
	t *testing.T, m *managerProcess, proxy *giteatest.Proxy, phase int, random *rand.Rand,
	begin func(),
) bool {
	t.Helper()
	is, came := killPhases[phase].is, true
	kill := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.times = append(k.times, time.Now())
		m.kill()
	}
	if is == nil {
		begin()
		wait(t, time.Duration(random.IntN(3000))*time.Millisecond)
		kill()
	} else {
		if phase >= runningPhase {
			begin()
		}
		hit, dead := make(chan struct{}), make(chan struct{})
		var once sync.Once
		var gave atomic.Bool
		proxy.Intercept(func(c giteatest.Call, answered bool) (drop bool) {
			in, out := parsed(c)
			if in.after = gave.Load(); answered && c.Method == "FetchTask" && out.Task.ID != "" {
				gave.Store(true)
			}
			if answered != killPhases[phase].answered || !is(c.Method, in, out) {
				return false
			}
			once.Do(func() {
				close(hit)
				drop = true
			})
			if drop {
				<-dead
			}
			return drop
		})
		if phase < runningPhase {
			begin()
		}
		timer := time.NewTimer(20 * time.Second)
		select {
		case <-hit:
		case <-timer.C:
			came = false
		}
		timer.Stop()
		kill()
		close(dead)
		proxy.Intercept(nil)
	}
	return came
}

// A manager is killed in each phase of a task: each task ends once with the right result, each row of its log is there
// once and in order, and its commands ran once. A kill between the question and the disk may lose the answer of the
// server, which ends such a task by itself: its commands never ran. STEPMUX_GITEA_KILLS is how often it is killed.
//
//stepmux:faults users | A manager dies in any phase of a job of Gitea: no command runs twice, no row is lost or doubled
//stepmux:with instance/manager.TestAJobOfGiteaOutlivesItsManager
func TestAManagerThatIsKilledLosesNoJobOfARealGitea(t *testing.T) {
	kills := numberFrom(t, "STEPMUX_GITEA_KILLS", len(killPhases))
	dir := t.TempDir()
	ledger := filepath.Join(dir, "ledger")
	g := giteatest.Real(t, "ZOMBIE_TASK_TIMEOUT = 40s", "[cron.stop_zombie_tasks]", "SCHEDULE = @every 5s")
	proxy := giteatest.NewProxy(t, g.URL)
	token := filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(token, []byte(g.RegistrationToken), 0o600))
	m := serveConfig(t, dir, 2,
		fmt.Sprintf("gitea: {name: one, url: %q, token-file: %s, runner: one}\n", proxy.URL, token))
	r := g.Repo("kills", ledgerWorkflows("ubuntu-latest", ledger))
	random := rand.New(rand.NewPCG(54, uint64(kills))) // no secret
	count, missed := map[string]int{}, map[string]int{}
	k := &killed{}
	n := 0
	for i := range kills {
		phase := i % len(killPhases)
		t.Logf("kill %d: %s", i, killPhases[phase].name)
		begin := func() {
			jobs := 1 // a second one would be asked for while the manager is killed, and often be lost
			if phase >= runningPhase {
				jobs = 2
			}
			for range jobs {
				r.Dispatch(ledgerFile("ubuntu-latest", n), map[string]string{"n": fmt.Sprint(n)})
				n++
			}
			if phase >= runningPhase {
				require.Eventually(t, func() bool { return tasksOf(proxy.Calls()) == n }, bound, 10*time.Millisecond)
			}
		}
		if k.at(t, m.managerProcess, proxy, phase, random, begin) {
			count[killPhases[phase].name]++
		} else {
			missed[killPhases[phase].name]++
		}
		m.start()
	}
	lost := requireReported(t, r, n, ledger, proxy.Calls(), k.times)
	t.Logf("%d kills, %d jobs: %d lost between the question and the disk; kills by phase %v, not reached %v", kills, n,
		lost, count, missed)
	require.Len(t, count, min(kills, len(killPhases)), "each phase was reached: %v", slices.Sorted(maps.Keys(count)))
}

// requireReported waits for the end of n jobs of the tests here, and checks them at the server and in the ledger. It
// returns how many were lost at a kill.
func requireReported(
	t *testing.T, r *giteatest.Repo, n int, ledger string, calls []giteatest.Call, kills []time.Time,
) int {
	t.Helper()
	jobs := map[int64]giteatest.Job{}
	require.Eventually(t, func() bool {
		all := r.Jobs()
		for _, job := range all {
			jobs[job.RunID] = job
		}
		return len(all) == n && !slices.ContainsFunc(all, func(j giteatest.Job) bool { return j.Status != "completed" })
	}, bound, time.Second)
	lost := lostTasks(calls, kills)
	ran, err := os.ReadFile(ledger)
	require.NoError(t, err)
	times := map[string]int{}
	for _, line := range strings.Fields(string(ran)) {
		times[line]++
	}
	wanted := map[string]int{}
	for i, run := range r.Runs() {
		job := jobs[run.ID]
		if lost[fmt.Sprint(run.ID)] {
			require.Equal(t, "failure", job.Conclusion, "job %d, whose answer was lost", i)
			continue
		}
		wanted[fmt.Sprintf("%d.one", i)], wanted[fmt.Sprintf("%d.two", i)] = 1, 1
		conclusion := "success"
		if i%4 == 3 {
			conclusion = "failure"
		}
		require.Equal(t, conclusion, job.Conclusion, "job %d: %q", i, r.Rows(job.ID))
		if !jobCalls(i) {
			require.Equal(t, []string{"success", "success", conclusion, conclusion}, r.Steps(job))
		}
		require.Equal(t, rowsOf(i), r.Rows(job.ID), "the log of job %d", i)
	}
	require.Equal(t, wanted, times, "each command ran once")
	require.Empty(t, finalCalls(calls), "tasks that were ended with two results")
	return len(lost)
}

// jobCalls reports whether the n-th job of the tests here calls a workflow. That has a job for each of the two steps of
// other jobs.
func jobCalls(n int) bool { return n%3 == 1 }

// ledgerFile is the file of the workflow of the n-th job.
func ledgerFile(label string, n int) string {
	if jobCalls(n) {
		return label + "-calls.yml"
	}
	return label + ".yml"
}

// ledgerWorkflows are the workflows of jobs that write each step into a ledger, and the rows of rowsOf.
func ledgerWorkflows(label, ledger string) map[string]string {
	const byHand = "\non: {workflow_dispatch: {inputs: {n: {type: string}}}}\njobs:\n"
	one := `
      - run: |
          echo ${{ inputs.n }}.one >>` + ledger + `
          for i in $(seq 40); do echo "line $i of ${{ inputs.n }}"; sleep 0.05; done`
	two := `
      - run: echo ${{ inputs.n }}.two >>` + ledger + `; seq 1200; exit $((${{ inputs.n }} % 4 / 3))`
	return map[string]string{
		".gitea/workflows/" + label + ".yml": byHand + "  a:\n    runs-on: " + label + "\n    steps:" + one + two,
		".gitea/workflows/" + label + "-calls.yml": byHand + "  a:\n    runs-on: " + label +
			"\n    uses: ./.gitea/workflows/" + label + "-called.yml\n    with: {n: '${{ inputs.n }}'}\n",
		".gitea/workflows/" + label + "-called.yml": "on: {workflow_call: {inputs: {n: {type: string}}}}\njobs:\n" +
			"  one:\n    runs-on: " + label + "\n    steps:" + one +
			"\n  two:\n    needs: one\n    runs-on: " + label + "\n    steps:" + two,
	}
}

// rowsOf are the rows of the n-th job.
func rowsOf(n int) (all []string) {
	if jobCalls(n) {
		all = append(all, "stepmux: the job a / one")
	}
	for i := range 40 {
		all = append(all, fmt.Sprintf("line %d of %d", i+1, n))
	}
	if jobCalls(n) {
		all = append(all, "stepmux: the job a / two")
	}
	for i := range 1200 {
		all = append(all, fmt.Sprint(i+1))
	}
	switch {
	case n%4 < 3:
		return append(all, "stepmux: the job has succeeded")
	case jobCalls(n):
		return append(all, `stepmux: the job failed: a / two: step "step_1"`)
	default:
		return append(all, `stepmux: the job failed: step "step_2"`)
	}
}

// tasksOf returns how many tasks the server has handed out.
func tasksOf(calls []giteatest.Call) (n int) {
	for _, c := range calls {
		if _, out := parsed(c); c.Method == "FetchTask" && out.Task.ID != "" {
			n++
		}
	}
	return n
}

// lostTasks returns the runs whose tasks were handed out, and never spoken of by the manager. Each was handed out just
// before a kill.
func lostTasks(calls []giteatest.Call, kills []time.Time) map[string]bool {
	lost, known := map[string]bool{}, map[string]bool{}
	for _, c := range calls {
		in, _ := parsed(c)
		known[in.TaskID], known[in.State.ID] = true, true
	}
	for _, c := range calls {
		_, out := parsed(c)
		if c.Method != "FetchTask" || out.Task.ID == "" || known[out.Task.ID] {
			continue
		}
		if slices.ContainsFunc(kills, func(at time.Time) bool { return at.Sub(c.At).Abs() < time.Second }) {
			lost[fmt.Sprint(out.Task.Context["run_id"])] = true
		}
	}
	return lost
}

// finalCalls returns the tasks for which the server has taken different results.
func finalCalls(calls []giteatest.Call) (different []string) {
	results := map[string]string{}
	for _, c := range calls {
		in, _ := parsed(c)
		if c.Method != "UpdateTask" || !isFinal(in) || c.Status != 200 {
			continue
		}
		if before := results[in.State.ID]; before != "" && before != in.State.Result {
			different = append(different, in.State.ID)
		}
		results[in.State.ID] = in.State.Result
	}
	return different
}
