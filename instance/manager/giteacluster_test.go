package manager_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/manager"
	"github.com/stepmux/stepmux/instance/manager/giteadoor"
	"github.com/stepmux/stepmux/internal/standalone/managed"
	"github.com/stepmux/stepmux/internal/testing/giteatest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// doorOf starts a manager of a cluster with a door for jobs with a label. It reaches the server by a proxy.
func (c *cluster) doorOf(t *testing.T, nats string, server *giteatest.Fake, label string) (*door, *giteatest.Proxy) {
	t.Helper()
	m := c.memberWith(t, nats, func(cfg *manager.Config) { cfg.Pipelines = managed.Pipelines{} })
	proxy := giteatest.NewProxy(t, server.URL)
	return openDoor(t, m, server, func(cfg *giteadoor.Config) {
		cfg.URL, cfg.Labels, cfg.Runner = proxy.URL, []string{label}, "runner-"+label
	}), proxy
}

// holder holds back one call about each of some tasks, by the phases of these, until it is opened. Then it drops them.
type holder struct {
	mu     sync.Mutex // guards the following
	phases map[string]string
	held   map[string]bool
	open   chan struct{}
	dead   map[string]bool
}

// hook is for Proxy.Intercept.
func (h *holder) hook(c giteatest.Call, answered bool) (drop bool) {
	var in struct {
		TaskID string
		NoMore bool
		Rows   []struct{ Content string }
		State  struct{ ID, Result string }
	}
	_ = json.Unmarshal(c.Request, &in) // a call without these has nothing
	id := in.TaskID + in.State.ID
	final := in.State.Result != "" && in.State.Result != "RESULT_UNSPECIFIED"
	h.mu.Lock()
	phase := h.phases[id]
	at := map[string]bool{
		"submitted":           c.Method == "UpdateTask" && !final,
		"running":             len(in.Rows) > 0 && !in.NoMore,
		"reporting":           in.NoMore,
		"reporting, answered": in.NoMore && answered,
		"last call":           final,
		"last call, answered": final && answered,
	}[phase] && answered == strings.HasSuffix(phase, "answered")
	drop = h.dead[id]
	if at {
		h.held[phase] = true
	}
	h.mu.Unlock()
	if at && !drop {
		<-h.open
		h.mu.Lock()
		defer h.mu.Unlock()
		h.dead[id] = true
		return true
	}
	return drop
}

// One of two managers is cut off from NATS, and from then on its calls about some tasks are lost, each in another
// phase. The other manager ends all of its tasks: each ran once, and each row is there once and in order. At any time
// only one manager reports a task.
//
//stepmux:faults users | One of several managers dies, is cut off or ends with jobs of Gitea: another one ends them,
//stepmux:more each once, and only one at a time reports a job
//stepmux:with instance/manager.TestTheTasksOfAManagerThatEndsAreReportedByAnother
//stepmux:with cmd/stepmux.TestManagersOfAClusterThatAreKilledLoseNoJobOfGitea
func TestTheTasksOfAManagerThatIsCutOffAreReportedByAnother(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.capacity = 12
	server, link := giteatest.NewFake(t), sshtest.Proxy(t, c.nats)
	a, fromA := c.doorOf(t, link.Addr(), server, "a")
	b, fromB := c.doorOf(t, c.nats, server, "b")
	a.awaitHeld(1)
	b.awaitHeld(1)
	dir := t.TempDir()
	again, ledger := filepath.Join(dir, "again"), filepath.Join(dir, "ledger")
	hold := &holder{
		phases: map[string]string{}, held: map[string]bool{}, open: make(chan struct{}), dead: map[string]bool{},
	}
	fromA.Intercept(hold.hook)
	phases := []string{
		"submitted", "running", "reporting", "reporting, answered", "last call", "last call, answered", "alive",
	}
	ids := map[string]int64{}
	hold.mu.Lock()
	for i, phase := range phases {
		waits := ""
		if slices.Contains([]string{"submitted", "running", "alive"}, phase) {
			waits = "; while ! test -e " + again + "; do sleep 0.05; done"
		}
		task := taskOf(fmt.Sprintf("    steps: [{run: 'echo %d >>%s; seq 3'}, {run: 'echo waits%s; echo goes on'}]", i,
			ledger, waits))
		task.RunsOn = []string{"a"}
		ids[phase] = server.Add(task)
		hold.phases[fmt.Sprint(ids[phase])] = phase
	}
	hold.mu.Unlock()
	a.reports(ids["alive"], "waits")
	require.Eventually(t, func() bool {
		hold.mu.Lock()
		defer hold.mu.Unlock()
		return len(hold.held) == len(phases)-1
	}, sshtest.Bound, 10*time.Millisecond, "%v", hold.held)
	link.Stall()
	close(hold.open)
	require.Eventually(t, func() bool { return b.m.Holds() == 2 }, sshtest.Bound, 10*time.Millisecond)
	require.NoError(t, os.WriteFile(again, nil, 0o600))
	for _, phase := range phases {
		got := b.ended(ids[phase])
		require.Equal(t, "RESULT_SUCCESS", got.Result, "%s: %q", phase, got.Rows)
		require.Equal(t, []string{"1", "2", "3", "waits", "goes on", "stepmux: the job has succeeded"}, got.Rows, phase)
		require.Equal(t, "0 RESULT_SUCCESS 0+3, 1 RESULT_SUCCESS 3+2", stepsOf(got), phase)
		require.Equal(t, 1, got.Taken, phase)
	}
	require.Empty(t, b.m.KeptTasks(t, "gitea.test"))
	link.Resume()
	require.Eventually(t, func() bool { return a.m.Holds() == 1 }, sshtest.Bound, 10*time.Millisecond)
	next := taskOf("    steps: [{run: echo next}]")
	next.RunsOn = []string{"a"}
	require.Equal(t, "RESULT_SUCCESS", a.ended(server.Add(next)).Result, "it takes tasks again")
	for _, phase := range phases {
		require.Equal(t, 1, server.Task(ids[phase]).Final, phase)
		last, first := callsAbout(fromA, ids[phase]), callsAbout(fromB, ids[phase])
		require.NotEmpty(t, first, phase)
		require.True(t, len(last) == 0 || last[len(last)-1].At.Before(first[0].At), "%s: one reports it at a time", phase)
	}
	require.Equal(t, 2, server.Calls("Register"), "each manager is a runner")
	ran, err := os.ReadFile(ledger)
	require.NoError(t, err)
	lines := strings.Fields(string(ran))
	slices.Sort(lines)
	require.Equal(t, []string{"0", "1", "2", "3", "4", "5", "6"}, lines)
}

// callsAbout returns the calls about a task.
func callsAbout(proxy *giteatest.Proxy, id int64) (all []giteatest.Call) {
	for _, c := range proxy.Calls() {
		var in struct {
			TaskID string
			State  struct{ ID string }
		}
		_ = json.Unmarshal(c.Request, &in) // as above
		if in.TaskID+in.State.ID == fmt.Sprint(id) {
			all = append(all, c)
		}
	}
	return all
}

// A manager that ends leaves its tasks to the others at once. Each job begins in the slot that was reserved for it,
// whichever manager carries its pipeline out: there is no other one.
func TestTheTasksOfAManagerThatEndsAreReportedByAnother(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	server := giteatest.NewFake(t)
	a, _ := c.doorOf(t, c.nats, server, "ubuntu-latest")
	b, _ := c.doorOf(t, c.nats, server, "ubuntu-latest")
	a.awaitHeld(1)
	b.awaitHeld(1)
	wait, open := gate(t)
	for range 2 {
		b.await(b.submit("echo on\n"+wait), "on\n")
	}
	again := filepath.Join(t.TempDir(), "again")
	var ids []int64
	for i := range 2 {
		ids = append(ids, server.Add(taskOf(fmt.Sprintf(
			"    steps: [{run: 'echo %d; while ! test -e %s; do sleep 0.05; done; echo on'}]", i, again))))
	}
	for i, id := range ids {
		a.reports(id, fmt.Sprint(i))
	}
	a.close()
	a.stop()
	require.NoError(t, os.WriteFile(again, nil, 0o600))
	for i, id := range ids {
		got := b.ended(id)
		require.Equal(t, "RESULT_SUCCESS", got.Result, "%q", got.Rows)
		require.Equal(t, []string{fmt.Sprint(i), "on", "stepmux: the job has succeeded"}, got.Rows)
	}
	open()
}
