package main

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/managed"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// countingPipeline is a pipeline whose jobs append lines to a ledger. Some share a cache, and fail if it is not whole.
// If the key begins with w, it is a workflow.
func countingPipeline(t *testing.T, key, ledger string) *pb.SubmitPipelineRequest {
	t.Helper()
	if strings.HasPrefix(key, "w") {
		return countingWorkflow(t, key, ledger)
	}
	line := func(job string) string { return fmt.Sprintf("'echo %s.%s >> %s'", key, job, ledger) }
	source, _, _, err := managed.Source(standalone.Source{
		Name: ".gitlab-ci.yml", Format: standalone.GitLabCI, WorkDir: t.TempDir(), Elsewhere: true,
		Text: []byte(fmt.Sprintf(`
stages: [one, two, three]
a: {stage: one, script: [%s, echo V=%s > v.env, echo %s > f, sleep 0.1],
  artifacts: {paths: [f], reports: {dotenv: v.env}}}
b:
  stage: two
  parallel: 3
  cache: {paths: [c]}
  script:
    - %s
    - test "$(cat f)" = "$V"
    - mkdir -p c; test "$(ls c)" = "" || cmp c/one c/two
    - echo $V | tee c/one >c/two
c: {stage: two, script: [%s, sleep 0.1, exit 1], retry: 1, allow_failure: true}
m: {stage: two, script: [%s], when: manual, allow_failure: false}
d: {stage: three, script: [%s, 'test "$(cat f)" = %s'], resource_group: one}
`, line("a"), key, key, line("b$CI_NODE_INDEX"), line("c"), line("m"), line("d"), key)),
	})
	require.NoError(t, err)
	return &pb.SubmitPipelineRequest{Key: key, Source: source, Repository: "r"}
}

// countingWorkflow is a workflow with the jobs of countingPipeline, and one of a concurrency group, which fails beside
// another one of the group. The matrix of b is made of an output.
func countingWorkflow(t *testing.T, key, ledger string) *pb.SubmitPipelineRequest {
	t.Helper()
	line := func(job string) string { return fmt.Sprintf("echo %s.%s >> %s", key, job, ledger) }
	source, _, _, err := managed.Source(standalone.Source{
		Name: "w.yml", Format: standalone.GitHub, WorkDir: t.TempDir(), Elsewhere: true,
		Text: []byte(fmt.Sprintf(`
on: push
concurrency: %s
jobs:
  g: {concurrency: one, steps: [{run: 'mkdir %s.g && %s && sleep 1 && rmdir %s.g'}]}
  a:
    outputs: {list: "${{ steps.s.outputs.list }}", v: %s}
    steps: [{id: s, run: '%s; echo "list=[1, 2, 3]" >> "$GITHUB_OUTPUT"; sleep 0.1'}]
  b:
    needs: a
    strategy: {matrix: {n: "${{ fromJSON(needs.a.outputs.list) }}"}}
    outputs: {v: "${{ needs.a.outputs.v }}"}
    steps: [{run: '%s'}]
  c:
    needs: a
    continue-on-error: true
    steps: [{run: '%s; sleep 0.1; exit 1'}]
  m: {needs: a, steps: [{run: '%s'}]}
  d: {needs: [b, c, m], if: always(), concurrency: %s-d, steps: [{run: '%s; test "${{ needs.b.outputs.v }}" = %s'}]}
`, key, ledger, line("g"), ledger, key, line("a"), line("b${{ matrix.n }}"), line("c"), line("m"), key, line("d"),
			key)),
	})
	require.NoError(t, err)
	return &pb.SubmitPipelineRequest{Key: key, Source: source, Repository: "r"}
}

// countedLines are the lines of a countingPipeline that has run to its end.
func countedLines(key string) map[string]int {
	all := map[string]int{}
	for _, job := range []string{"a", "b1", "b2", "b3", "m", "d"} {
		all[key+"."+job] = 1
	}
	if all[key+".c"] = 2; strings.HasPrefix(key, "w") { // attempts
		all[key+".c"] = 1
	}
	return all
}

// requirePipelines starts the manual jobs of pipelines and waits for their ends: each attempt of each job ran once.
func requirePipelines(t *testing.T, ids map[string]string, ledger string, client func(key string) pb.ManagerClient) {
	t.Helper()
	wanted := map[string]int{}
	for key, id := range ids {
		m := client(key)
		require.Eventually(t, func() bool { // the servers of a cluster may have no leader yet
			_, err := m.PlayPipeline(t.Context(), &pb.PlayPipelineRequest{Id: id, Job: "m"})
			return err == nil || status.Code(err) == codes.FailedPrecondition // it was started before
		}, bound, time.Millisecond)
		p, err := followPipeline(t.Context(), m, id, true, func(*pb.Pipeline) error { return nil })
		require.NoError(t, err)
		maps.Copy(wanted, countedLines(key))
		want, good := "success", 6
		switch g := p.GetJobs()[0]; {
		case g.GetName() != "g":
		case g.GetStatus() == "success":
			wanted[key+".g"], good = 1, 7
		default:
			want = "cancelled"
			require.Equal(t, "a newer job of its concurrency group took its place", g.GetWhy(), "%v", p)
		}
		require.Equal(t, want, p.GetStatus(), "%v", p)
		require.EqualValues(t, good, p.GetCounts()["success"], "%v", p)
	}
	ran, err := os.ReadFile(ledger)
	require.NoError(t, err)
	times := map[string]int{}
	for _, line := range strings.Fields(string(ran)) {
		times[line]++
	}
	require.Equal(t, wanted, times)
}

// A manager is killed in random states of pipelines. make prove WHAT=pipeline-kills does more of it.
//
//stepmux:faults users | A manager dies in any state of a pipeline: no attempt of a job is doubled, and none is lost
func TestAManagerThatIsKilledLosesNoJobOfAPipeline(t *testing.T) {
	kills := numberFrom(t, "STEPMUX_PIPELINE_KILLS", 6)
	dir := t.TempDir()
	ledger := filepath.Join(dir, "ledger")
	file, _ := newInventory(t, dir, 2)
	p := &managerProcess{t: t, socket: filepath.Join(sshtest.SocketDir(t), "m.sock"), patience: bound}
	p.args = []string{
		"manager", "--state", filepath.Join(dir, "state"), "--inventory", file, "--socket", p.socket, "--log-level", "info",
	}
	defer func() {
		if t.Failed() {
			t.Logf("the log of the managers:\n%s", lastOf(&p.stderr))
		}
	}()
	p.start()
	defer p.kill()
	conn, err := pb.Dial(p.socket)
	require.NoError(t, err)
	defer conn.Close()
	client := pb.NewManagerClient(conn)
	random := rand.New(rand.NewPCG(2, uint64(kills))) // no secret
	ids, states := map[string]string{}, map[string]int{}
	for i := range kills {
		key := fmt.Sprintf("%c%d", "kw"[i%2], i)
		require.Eventually(t, func() bool {
			resp, err := client.SubmitPipeline(t.Context(), countingPipeline(t, key, ledger))
			ids[key] = resp.GetId()
			return err == nil
		}, bound, time.Millisecond)
		if i%3 == 2 { // it may wait for that already, or later
			_, _ = client.PlayPipeline(t.Context(), &pb.PlayPipelineRequest{Id: ids[key], Job: "m"})
		}
		wait(t, time.Duration(random.IntN(1200))*time.Millisecond)
		now, err := followPipeline(t.Context(), client, ids[key], false, func(*pb.Pipeline) error { return nil })
		require.NoError(t, err)
		states[now.GetPhase().String()+" "+now.CountsText()]++
		p.kill()
		p.start()
	}
	requirePipelines(t, ids, ledger, func(string) pb.ManagerClient { return client })
	t.Logf("%d kills in %d states, %d pipelines: no job doubled, none lost: %v", kills, len(states), len(ids),
		slices.Sorted(maps.Keys(states)))
}

// lastOf returns the end of a log.
func lastOf(log *bytes.Buffer) string {
	text := log.String()
	return text[max(0, len(text)-64<<10):]
}
