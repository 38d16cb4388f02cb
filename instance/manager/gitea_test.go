package manager_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/manager/giteadoor"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/testing/giteatest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// door is a manager that takes jobs from a server.
type door struct {
	*running
	server *giteatest.Fake
	close  func() // ends the door, before the manager
}

// serveGitea starts a manager with a door for the server.
func serveGitea(t *testing.T, f *fleet, server *giteatest.Fake, change ...func(*giteadoor.Config)) *door {
	t.Helper()
	return openDoor(t, f.start(t), server, change...)
}

// openDoor opens a door of a manager for the server.
func openDoor(t *testing.T, m *running, server *giteatest.Fake, change ...func(*giteadoor.Config)) *door {
	t.Helper()
	cfg := giteadoor.Config{
		Name: "test", URL: server.URL, Runner: "runner", Labels: []string{"ubuntu-latest", "gpu"},
		Token: func() (string, error) { return giteatest.RegistrationToken, nil },
	}
	for _, c := range change {
		c(&cfg)
	}
	require.NoError(t, cfg.Check())
	ctx, cancel := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	serving.Go(func() { m.m.ServeGitea(ctx, cfg) })
	d := &door{m, server, func() {
		cancel()
		serving.Wait()
	}}
	t.Cleanup(d.close)
	return d
}

// ended waits for the end of a job.
func (d *door) ended(id int64) giteatest.FakeTask {
	d.t.Helper()
	require.Eventually(d.t, func() bool { return d.server.Task(id).Result != "" }, sshtest.Bound, time.Millisecond,
		"%+v", d.server.Task(id))
	return d.server.Task(id)
}

// reports waits for a row of a job.
func (d *door) reports(id int64, row string) {
	d.t.Helper()
	require.Eventually(d.t, func() bool { return slices.Contains(d.server.Task(id).Rows, row) }, sshtest.Bound,
		time.Millisecond, "%+v", d.server.Task(id))
}

// taskOf returns a job with steps.
func taskOf(steps string) giteatest.FakeTask {
	return giteatest.FakeTask{
		Workflow: "name: CI\non: push\njobs:\n  test:\n    runs-on: ubuntu-latest\n" + steps,
		RunsOn:   []string{"ubuntu-latest"},
		Context: map[string]any{
			"actor": "ann", "repository": "ann/demo", "repository_owner": "ann", "sha": strings.Repeat("a", 40),
			"ref": "refs/heads/main", "event_name": "push", "run_id": "7", "run_number": "3", "workflow": "ci.yml",
			"server_url": "https://gitea.invalid/", "api_url": "https://gitea.invalid/api/v1",
			"event": map[string]any{"head_commit": map[string]any{"message": "the ${{ message }}"}},
			"token": "token-of-the-job", "gitea_runtime_token": "runtime-token-of-the-job",
			"gitea_default_actions_url": "https://gitea.invalid/",
		},
	}
}

func TestAJobOfGiteaRunsAndIsReported(t *testing.T) {
	t.Parallel()
	server := giteatest.NewFake(t)
	task := taskOf(`
    outputs: {sum: "${{ steps.sum.outputs.sum }}", secret: "${{ steps.sum.outputs.secret }}"}
    timeout-minutes: "30"
    steps:
      - run: echo first; echo second >&2
      - id: sum
        env: {S: "${{ secrets.PASSWORD }}", M: "${{ github.event.head_commit.message }}"}
        run: |
          printf '%s\n' "sum=${{ needs.before.outputs.n }}1" "secret=$S" >> $GITHUB_OUTPUT
          echo "$S ${{ vars.LEVEL }} ${{ needs.before.result }} ${{ github.token }} $M"
      - run: echo no
        if: failure()
      - run: |
          echo "$GITHUB_SERVER_URL $GITHUB_API_URL $GITHUB_REPOSITORY $GITHUB_RUN_NUMBER" \
            "$GITHUB_REF_NAME $GITEA_ACTIONS" "$GITHUB_WORKFLOW_REF:$GITHUB_GRAPHQL_URL:"
`)
	task.Secrets = map[string]string{"PASSWORD": "a-long-secret"}
	task.Vars = map[string]string{"LEVEL": "low"}
	task.Needs = map[string]any{
		"before": map[string]any{"result": "RESULT_SUCCESS", "outputs": map[string]string{"n": "4"}},
	}
	id := server.Add(task)
	d := serveGitea(t, withPipelines(newFleet(t)), server)
	got := d.ended(id)
	require.Equal(t, "RESULT_SUCCESS", got.Result, "%q", got.Rows)
	require.Equal(t, []string{
		"first", "second", "[MASKED] low success [MASKED] the ${{ message }}",
		"https://gitea.invalid https://gitea.invalid/api/v1 ann/demo 3 main true " +
			"ann/demo/.gitea/workflows/ci.yml@refs/heads/main::",
		`stepmux: note: test: the output "secret" is left out: it contains a secret`, "stepmux: the job has succeeded",
	}, got.Rows)
	require.Equal(t, map[string]string{"sum": "41"}, got.Outputs)
	require.True(t, got.Closed)
	require.Equal(t, 1, got.Final)
	require.Equal(
		t,
		"0 RESULT_SUCCESS 0+2, 1 RESULT_SUCCESS 2+1, 2 RESULT_SKIPPED 3+0, 3 RESULT_SUCCESS 3+1",
		stepsOf(got),
	)
	require.LessOrEqual(t, server.Calls("UpdateLog"), 4, "few calls")
	require.LessOrEqual(t, server.Calls("UpdateTask"), 3)
	require.Empty(t, d.m.KeptTasks(t, "gitea.test"), "nothing of it is kept")
}

// stepsOf describes the steps of a job: number, result, first row and number of rows.
func stepsOf(task giteatest.FakeTask) string {
	var all []string
	for _, s := range task.Steps {
		all = append(all, fmt.Sprintf("%d %s %d+%d", s.ID, s.Result, s.LogIndex, s.LogLength))
	}
	return strings.Join(all, ", ")
}

func TestJobsOfGiteaEndAsTheyShould(t *testing.T) {
	t.Parallel()
	server := giteatest.NewFake(t)
	d := serveGitea(t, withPipelines(newFleet(t)), server)
	for name, test := range map[string]struct{ steps, result, last, shown string }{
		"a failure": {
			"    steps: [{run: exit 3}, {run: echo no}, {run: echo yes, if: always()}]", "RESULT_FAILURE",
			`stepmux: the job failed: step "step_1"`,
			"0 RESULT_FAILURE 0+0, 1 RESULT_SKIPPED 0+0, 2 RESULT_SUCCESS 0+1",
		},
		"its if is false": {
			"    if: github.ref == 'refs/heads/other'\n    steps: [{run: echo no}]", "RESULT_SKIPPED",
			"stepmux: the job was skipped: its if is false", "0 RESULT_SKIPPED 0+0",
		},
		"a time limit": {
			"    timeout-minutes: 0.002\n    steps: [{run: echo a; sleep 100}, {run: echo no}]", "RESULT_FAILURE",
			"stepmux: the job was cancelled", "",
		},
		"a mistake": {
			"    steps: [{run: echo, uses: a/b@c}]", "RESULT_FAILURE", "stepmux: test/ann/demo#3/ci.yml:",
			"0 RESULT_SKIPPED 0+0",
		},
		"a workflow that is not there": {
			"    uses: ./.github/workflows/x.yml", "RESULT_FAILURE",
			"stepmux: the job calls ./.github/workflows/x.yml: the server has no file .github/workflows/x.yml of ann/demo", "",
		},
		"no YAML": {"   steps: [", "RESULT_FAILURE", "stepmux: test/ann/demo#3/ci.yml:", ""},
		"a key without an effect": {
			"    environment: x\n    services: {db: {image: x}}\n    steps: [{run: echo fine}]", "RESULT_SUCCESS",
			"stepmux: the job has succeeded", "0 RESULT_SUCCESS 0+1",
		},
		"a matrix": {
			"    strategy: {matrix: {v: [5]}}\n    steps: [{run: 'echo v ${{ matrix.v }}'}]", "RESULT_SUCCESS",
			"stepmux: the job has succeeded", "0 RESULT_SUCCESS 0+1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := d.ended(server.Add(taskOf(test.steps)))
			require.Equal(t, test.result, got.Result, "%q", got.Rows)
			require.NotEmpty(t, got.Rows)
			require.True(t, strings.HasPrefix(got.Rows[len(got.Rows)-1], test.last), "%q", got.Rows)
			if test.shown != "" {
				require.Equal(t, test.shown, stepsOf(got))
			}
			require.True(t, got.Closed)
			if strings.Contains(test.steps, "services") {
				require.Contains(
					t,
					strings.Join(got.Rows, "\n"),
					"stepmux: note: test: test/ann/demo#3/ci.yml:6: environment has no",
				)
				require.Contains(t, strings.Join(got.Rows, "\n"), "services")
			}
		})
	}
}

func TestAJobOfGiteaHasTheInputsOfARunByHand(t *testing.T) {
	t.Parallel()
	server := giteatest.NewFake(t)
	task := taskOf(`    steps: [{run: 'echo "${{ inputs.n }} ${{ inputs.m && 1 }} ${{ github.event.inputs.n }}"'}]`)
	task.Workflow = strings.Replace(task.Workflow, "on: push",
		"on: {workflow_dispatch: {inputs: {n: {type: string}, m: {type: boolean}}}}", 1)
	task.Context["event_name"] = "workflow_dispatch"
	task.Context["event"] = map[string]any{"inputs": map[string]any{"n": "given", "m": "true"}}
	id := server.Add(task)
	d := serveGitea(t, withPipelines(newFleet(t)), server)
	require.Equal(t, []string{"given 1 given", "stepmux: the job has succeeded"}, d.ended(id).Rows)
}

func TestAJobThatGiteaCancelsEnds(t *testing.T) {
	t.Parallel()
	server := giteatest.NewFake(t)
	d := serveGitea(t, withPipelines(newFleet(t)), server)
	id := server.Add(
		taskOf("    steps: [{run: echo begins; sleep 1000}, {run: echo no}, {run: echo always, if: always()}]"),
	)
	d.reports(id, "begins")
	server.Cancel(id)
	got := d.ended(id)
	require.Equal(t, "RESULT_CANCELLED", got.Result)
	require.Equal(t, []string{"begins", "always", "stepmux: the job was cancelled"}, got.Rows)
	require.Equal(t, "0 RESULT_CANCELLED 0+1, 1 RESULT_SKIPPED 1+0, 2 RESULT_SUCCESS 1+1", stepsOf(got))
}

// A manager that ends leaves the job to the next one, which reports it from where the server has stopped: no row is
// missing, and none is there twice.
func TestAJobOfGiteaOutlivesItsManager(t *testing.T) {
	t.Parallel()
	server := giteatest.NewFake(t)
	f := withPipelines(newFleet(t))
	again := filepath.Join(t.TempDir(), "again")
	d := serveGitea(t, f, server)
	id := server.Add(taskOf("    steps: [{run: 'for i in 1 2 3; do echo $i; done'}, {run: 'echo waits; while ! test -e " +
		again + "; do sleep 0.01; done; echo goes on'}]"))
	d.reports(id, "waits")
	d.close()
	d.stop()
	require.NotEmpty(t, f.dir)
	require.NoError(t, os.WriteFile(again, nil, 0o600))
	d = serveGitea(t, f, server)
	got := d.ended(id)
	require.Equal(t, "RESULT_SUCCESS", got.Result)
	require.Equal(t, []string{"1", "2", "3", "waits", "goes on", "stepmux: the job has succeeded"}, got.Rows)
	require.Equal(t, "0 RESULT_SUCCESS 0+3, 1 RESULT_SUCCESS 3+2", stepsOf(got))
	require.Equal(t, 1, got.Taken)
	require.Equal(t, 1, server.Calls("Register"), "it is the same runner")
	require.Positive(t, got.Steps[1].StoppedAt.Sub(*got.Steps[0].StoppedAt))
}

// A server that is away for a while gets the whole log later, and what it has taken is not sent again.
func TestAServerThatIsAwayGetsTheLogLater(t *testing.T) {
	t.Parallel()
	server := giteatest.NewFake(t)
	d := serveGitea(t, withPipelines(newFleet(t)), server)
	again := filepath.Join(t.TempDir(), "again")
	id := server.Add(
		taskOf("    steps: [{run: 'echo begins; while ! test -e " + again + "; do sleep 0.01; done; seq 3000'}]"),
	)
	d.reports(id, "begins")
	server.Refuse(func(string) (int, string, string) { return http.StatusBadGateway, "", "away" })
	require.NoError(t, os.WriteFile(again, nil, 0o600))
	require.Eventually(t, func() bool { return d.m.Taken() == 0 }, sshtest.Bound, time.Millisecond, "the job ends")
	server.Refuse(nil)
	got := d.ended(id)
	require.Equal(t, "RESULT_SUCCESS", got.Result)
	require.Len(t, got.Rows, 3002)
	require.Equal(t, []string{"begins", "1"}, got.Rows[:2])
	require.Equal(t, []string{"3000", "stepmux: the job has succeeded"}, got.Rows[3000:])
}

// A server that does not know the runner any more gets a new one, and the jobs of the old one are ended.
func TestARunnerThatWasDeletedIsRegisteredAnew(t *testing.T) {
	t.Parallel()
	server := giteatest.NewFake(t)
	d := serveGitea(t, withPipelines(newFleet(t)), server)
	id := server.Add(taskOf("    steps: [{run: echo begins; sleep 1000}]"))
	d.reports(id, "begins")
	server.Forget()
	require.Eventually(t, func() bool { return d.m.Taken() == 0 }, sshtest.Bound, time.Millisecond, "its job is ended")
	next := server.Add(taskOf("    steps: [{run: echo next}]"))
	require.Equal(t, "RESULT_SUCCESS", d.ended(next).Result)
	require.Equal(t, 2, server.Calls("Register"))
	require.Empty(t, d.server.Task(id).Result)
}

// A crash of the machine can bring a task back that had ended, after the record of its pipeline is gone. It is
// forgotten again, runs no second time, and keeps no other job out.
func TestATaskThatComesBackAfterItsEndIsForgotten(t *testing.T) {
	t.Parallel()
	server := giteatest.NewFake(t)
	f := withPipelines(newFleet(t))
	ledger := filepath.Join(t.TempDir(), "ledger")
	d := serveGitea(t, f, server)
	id := server.Add(taskOf("    steps: [{run: 'echo ran >>" + ledger + "; sleep 0.1'}]"))
	require.Eventually(t, func() bool { return server.Task(id).Taken == 1 }, sshtest.Bound, time.Millisecond)
	key := fmt.Sprintf("gitea.test.task.%d", id)
	var text []byte
	require.Eventually(t, func() bool {
		text = d.m.KeptText(t, key)
		return text != nil
	}, sshtest.Bound, time.Millisecond)
	d.ended(id)
	require.Empty(t, d.m.KeptTasks(t, "gitea.test"))
	d.close()
	p, err := d.ListPipelines(t.Context(), &pb.ListPipelinesRequest{})
	require.NoError(t, err)
	d.m.RemovePipeline(t, p.GetPipelines()[0].GetId())
	d.m.KeepText(t, key, text)
	d.stop()
	d = serveGitea(t, f, server, func(cfg *giteadoor.Config) { cfg.Limit = 1 })
	next := server.Add(taskOf("    steps: [{run: echo next}]"))
	require.Equal(t, "RESULT_SUCCESS", d.ended(next).Result)
	require.Empty(t, d.m.KeptTasks(t, "gitea.test"))
	ran, err := os.ReadFile(ledger)
	require.NoError(t, err)
	require.Equal(t, "ran\n", string(ran))
	require.Equal(t, 1, server.Task(id).Final)
}

// More jobs than slots, and a limit below both: a job that has no slot is not taken.
func TestADoorTakesNoMoreJobsThanItHasSlots(t *testing.T) {
	t.Parallel()
	server := giteatest.NewFake(t)
	f := withPipelines(newFleet(t))
	f.capacity = 3
	dir := t.TempDir()
	d := serveGitea(t, f, server, func(cfg *giteadoor.Config) { cfg.Limit = 2 })
	again := filepath.Join(dir, "again")
	var ids []int64
	for i := range 8 {
		ids = append(ids, server.Add(taskOf(fmt.Sprintf("    steps: [{run: 'touch %s/%d; "+
			"while ! test -e %s; do sleep 0.01; done'}]", dir, i, again))))
	}
	begun := func() (n int) {
		for _, id := range ids {
			n += server.Task(id).Taken
		}
		return n
	}
	require.Eventually(t, func() bool {
		found, err := filepath.Glob(filepath.Join(dir, "?"))
		return err == nil && len(found) == 2
	}, sshtest.Bound, time.Millisecond)
	own := d.submit("true") // the door leaves the third slot to others
	_, b := d.wait(own, 0)
	require.Empty(t, b.GetResult().GetReason())
	require.Equal(t, 2, begun())
	require.NoError(t, os.WriteFile(again, nil, 0o600))
	for _, id := range ids {
		require.Equal(t, "RESULT_SUCCESS", d.ended(id).Result)
	}
	require.Equal(t, 8, begun())
}

// Builds of the queue and jobs of a server take turns on one slot, however many of both wait.
func TestTheQueueAndADoorTakeTurns(t *testing.T) {
	t.Parallel()
	server := giteatest.NewFake(t)
	f := withPipelines(newFleet(t))
	f.capacity = 1
	d := serveGitea(t, f, server)
	ledger := filepath.Join(t.TempDir(), "ledger")
	wait, open := gate(t)
	d.await(d.submit("echo on\n"+wait), "on\n")
	var ids []int64
	var own []string
	for range 12 {
		own = append(own, d.submit("sleep 0.1; echo queue >>"+ledger)) // longer than the door rests, all together
		ids = append(ids, server.Add(taskOf("    steps: [{run: 'echo door >>"+ledger+"'}]")))
	}
	open()
	for i := range ids {
		require.Equal(t, "RESULT_SUCCESS", d.ended(ids[i]).Result)
		d.wait(own[i], 0)
	}
	text, err := os.ReadFile(ledger)
	require.NoError(t, err)
	lines := strings.Fields(string(text))
	require.Len(t, lines, 24)
	doors := len(slices.DeleteFunc(lines[:12], func(l string) bool { return l != "door" }))
	require.True(t, 2 < doors && doors < 10, "%s", text)
}

func TestBadTokensAndServersAreToldAndTriedAgain(t *testing.T) {
	t.Parallel()
	server := giteatest.NewFake(t)
	f := withPipelines(newFleet(t))
	token := "wrong"
	var mu sync.Mutex
	d := serveGitea(t, f, server, func(cfg *giteadoor.Config) {
		cfg.Token = func() (string, error) {
			mu.Lock()
			defer mu.Unlock()
			if token == "" {
				return "", errors.New("no such file")
			}
			return token, nil
		}
	})
	id := server.Add(taskOf("    steps: [{run: echo now}]"))
	require.Eventually(t, func() bool { return server.Calls("Register") > 0 }, sshtest.Bound, time.Millisecond)
	require.Zero(t, server.Calls("FetchTask"))
	require.Eventually(t, func() bool {
		resp, err := d.Status(t.Context(), &pb.StatusRequest{})
		return err == nil &&
			strings.Contains(string(resp.GetJson()), `"state":"away","reason":"cannot register: register at `+
				server.URL+`: runner.v1.RunnerService/Register: the server answers 500 unknown: `+
				`runner registration token not found"`)
	}, sshtest.Bound, time.Millisecond)
	mu.Lock()
	token = giteatest.RegistrationToken
	mu.Unlock()
	require.Equal(t, "RESULT_SUCCESS", d.ended(id).Result)
	resp, err := d.Status(t.Context(), &pb.StatusRequest{})
	require.NoError(t, err)
	require.Contains(t, string(resp.GetJson()), `"servers":[{"name":"test","url":"`+server.URL+`","state":"ready"`)
}

// A webhook lets the door look at once, also if it comes while the door waits for the next question.
func TestAWebhookBringsAJobAtOnce(t *testing.T) {
	t.Parallel()
	server := giteatest.NewFake(t)
	d := serveGitea(t, withPipelines(newFleet(t)), server, func(cfg *giteadoor.Config) {
		cfg.Secret = func() (string, error) { return "key", nil }
	})
	page := d.servePage(t, false)
	body := `{"action":"queued","repository":"` + strings.Repeat("x", 20<<10) + `"}` // Gitea sends much
	hook := func(name, signature string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, page.at+"/hooks/gitea/"+name,
			strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("X-Gitea-Event", "workflow_job")
		req.Header.Set("X-Gitea-Signature", signature)
		resp, err := page.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		return resp.StatusCode
	}
	require.Eventually(t, func() bool { return server.Calls("FetchTask") > 0 }, sshtest.Bound, time.Millisecond)
	server.StaysSilent() // its version does not tell of new jobs
	id := server.Add(taskOf("    steps: [{run: echo now}]"))
	require.Equal(t, http.StatusForbidden, hook("test", "00"))
	require.Equal(t, http.StatusNotFound, hook("other", "00"))
	require.Equal(t, http.StatusNoContent, hook("test", giteatest.Sign("key", body)))
	require.Equal(t, "RESULT_SUCCESS", d.ended(id).Result)
}

// With ephemeral each task has a runner of its own. An idle door does not register again, and its runner is that of the
// next door.
func TestEachTaskHasAnEphemeralRunner(t *testing.T) {
	t.Parallel()
	server := giteatest.NewFake(t)
	f := withPipelines(newFleet(t))
	ephemeral := func(c *giteadoor.Config) { c.Ephemeral = true }
	d := serveGitea(t, f, server, ephemeral)
	runners := map[string]bool{}
	for range 3 {
		got := d.ended(server.Add(taskOf("    steps: [{run: echo here}]\n")))
		require.Equal(t, "RESULT_SUCCESS", got.Result)
		require.Contains(t, got.Rows, "here")
		runners[got.Runner] = true
	}
	require.Len(t, runners, 3)
	asked := server.Calls("FetchTask")
	require.Eventually(t, func() bool { return server.Calls("FetchTask") > asked+2 }, sshtest.Bound, time.Millisecond)
	require.Equal(t, 4, server.Calls("Register"), "the last one waits for a task")
	require.Equal(t, 1, server.Runners())
	d.close()
	require.NoError(t, d.m.Shutdown(t.Context()))
	next := serveGitea(t, f, server, ephemeral)
	require.Equal(t, "RESULT_SUCCESS", next.ended(server.Add(taskOf("    steps: [{run: echo here}]\n"))).Result)
	next.close()
	require.LessOrEqual(t, server.Calls("Register"), 5, "the next door has used the one that was left")
	require.LessOrEqual(t, server.Runners(), 1)
}

// An answer that is lost may have had a task: the server gives the runner no other one, so the door takes a new runner.
func TestAnEphemeralRunnerWhoseAnswerIsLostIsReplaced(t *testing.T) {
	t.Parallel()
	server := giteatest.NewFake(t)
	var lost atomic.Bool
	proxy := giteatest.NewProxy(t, server.URL)
	proxy.Intercept(func(c giteatest.Call, answered bool) bool {
		return c.Method == "FetchTask" && answered && strings.Contains(string(c.Response), `"task":`) &&
			lost.CompareAndSwap(false, true)
	})
	d := serveGitea(t, withPipelines(newFleet(t)), server, func(c *giteadoor.Config) {
		c.Ephemeral, c.URL = true, proxy.URL
	})
	server.Add(taskOf("    steps: [{run: echo lost}]\n"))
	require.Eventually(t, lost.Load, sshtest.Bound, time.Millisecond)
	require.Equal(t, "RESULT_SUCCESS", d.ended(server.Add(taskOf("    steps: [{run: echo here}]\n"))).Result)
}
