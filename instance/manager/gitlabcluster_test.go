//go:build gitlab

package manager_test

import (
	"bytes"
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

	"github.com/stepmux/stepmux/internal/testing/gitlabtest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// way is the way of a manager to a fake. It may hold calls back.
type way struct {
	to *gitlabtest.Fake
	// hold says which calls are held back, before or after the server has acted on them. They are dropped at the end.
	hold func(req *http.Request, body []byte) (before, after bool)

	mu   sync.Mutex // guards the following
	held int
	open chan struct{}
	seen map[string][]time.Time // the calls that were passed on, by the job
}

// ServeHTTP implements http.Handler.
func (w *way) ServeHTTP(out http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the manager is gone
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	before, after := false, false
	if w.hold != nil {
		before, after = w.hold(req, body)
	}
	if before {
		w.wait()
	}
	w.mu.Lock()
	if _, about, is := strings.Cut(req.URL.Path, "/jobs/"); is {
		job, _, _ := strings.Cut(about, "/")
		w.seen[job] = append(w.seen[job], time.Now())
	}
	w.mu.Unlock()
	if after {
		w.to.ServeHTTP(httptest.NewRecorder(), req)
		w.wait()
	}
	w.to.ServeHTTP(out, req)
}

// wait waits until the call may be dropped.
func (w *way) wait() {
	w.mu.Lock()
	w.held++
	w.mu.Unlock()
	<-w.open
	panic(http.ErrAbortHandler)
}

// openWay opens a door of a manager, with a way of its own to a fake.
func openWay(t *testing.T, m *running, fake *gitlabtest.Fake) (*gitLab, *way) {
	t.Helper()
	w := &way{to: fake, open: make(chan struct{}), seen: map[string][]time.Time{}}
	server := httptest.NewServer(w)
	t.Cleanup(server.Close)
	return serveGitLab(t, m, fake, server.URL), w
}

// One of two managers is cut off from NATS. The other one ends its jobs: one that runs, one whose final state the
// server does not have, and one whose final state it has, though nobody knows. Each ran once, its trace is there
// once, and at any time only one manager reports it. Each manager asks with a system_id of its own.
//
//stepmux:faults users | One of several managers dies, is cut off or ends with jobs of GitLab: another one ends them,
//stepmux:more each once, and only one at a time reports a job
//stepmux:with instance/manager.TestTheJobsOfGitLabOfAManagerThatEndsAreReportedByAnother
//stepmux:with cmd/stepmux.TestManagersOfAClusterThatAreKilledLoseNoJobOfGitLab
func TestTheJobsOfGitLabOfAManagerThatIsCutOffAreReportedByAnother(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.capacity = 4
	fake, _ := serveFake(t, gitlabtest.Config{})
	link := sshtest.Proxy(t, c.nats)
	first, second := c.twoMembers(t, link.Addr())
	a, fromA := openWay(t, first, fake)
	dir := t.TempDir()
	again, ledger := filepath.Join(dir, "again"), filepath.Join(dir, "ledger")
	running, final, answered := int64(1), int64(2), int64(3)
	fromA.hold = func(req *http.Request, body []byte) (before, after bool) {
		is := func(id int64) bool {
			return strings.HasSuffix(req.URL.Path, fmt.Sprintf("/jobs/%d", id)) && bytes.Contains(body, []byte(`"success"`))
		}
		return is(final), is(answered)
	}
	for id := running; id <= answered; id++ {
		waits := ""
		if id == running {
			waits = "echo waits; while ! test -e " + again + "; do sleep 0.05; done"
		}
		require.Equal(t, id, fake.Add(scriptJob(a.url, fmt.Sprintf("echo %d >>%s", id, ledger), "seq 100 103", waits)))
	}
	a.reports(running, "waits\n")
	require.Eventually(t, func() bool {
		fromA.mu.Lock()
		defer fromA.mu.Unlock()
		return fromA.held == 2
	}, sshtest.Bound, 10*time.Millisecond)
	b, fromB := openWay(t, second, fake)
	link.Stall()
	close(fromA.open)
	require.Eventually(t, func() bool { return b.m.Holds() == 2 }, sshtest.Bound, 10*time.Millisecond)
	require.NoError(t, os.WriteFile(again, nil, 0o600))
	for id := running; id <= answered; id++ {
		got := b.ended(id)
		require.Equal(t, gitlabtest.Success, got.Status, "%s", got.Trace)
		require.Equal(t, 1, got.Taken)
		require.Equal(t, 1, strings.Count(shown(t, got), "100\n101\n102\n103\n"), "%s", got.Trace)
		require.Equal(t, fake.Job(running).System, got.System)
	}
	require.Eventually(t, func() bool { return len(b.m.KeptTasks(t, "gitlab.lab")) == 0 }, sshtest.Bound,
		10*time.Millisecond)
	for id := running; id <= answered; id++ {
		require.Equal(t, 1, fake.Job(id).Final)
		last, first := fromA.about(id), fromB.about(id)
		require.NotEmpty(t, last)
		require.NotEmpty(t, first)
		require.True(t, last[len(last)-1].Before(first[0]), "one reports it at a time")
	}
	ran, err := os.ReadFile(ledger)
	require.NoError(t, err)
	require.Len(t, strings.Fields(string(ran)), 3, "each ran once")
	next := b.ended(fake.Add(scriptJob(b.url, "echo next")))
	require.NotEqual(t, fake.Job(running).System, next.System, "each manager has its own system_id")
	link.Resume() // the end of a manager that is cut off takes long
}

// about returns the calls about a job.
func (w *way) about(id int64) []time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen[fmt.Sprint(id)]
}
