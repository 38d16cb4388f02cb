package manager_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/gitlabtest"
)

// oneSlot is a manager with one slot that takes jobs from a fake: a job whose end is not seen keeps the next one out.
func oneSlot(t *testing.T, cfg gitlabtest.Config) (g *gitLab) {
	t.Helper()
	fake, url := serveFake(t, cfg)
	f := withPipelines(newFleet(t))
	f.capacity = 1
	return serveGitLab(t, f.start(t), fake, url)
}

// next requires that the slot is free, and that nothing of the jobs before is kept.
func (g *gitLab) next() {
	g.t.Helper()
	got := g.ended(g.fake.Add(scriptJob(g.url, "echo next")))
	require.Equal(g.t, gitlabtest.Success, got.Status, "%s", got.Trace)
	require.Empty(g.t, g.m.KeptTasks(g.t, "gitlab.lab"))
}

// The job is cancelled when the manager has it, and before it has told the server that it runs: no command runs.
func TestAJobOfGitLabThatIsCancelledBeforeItStartsDoesNotRun(t *testing.T) {
	t.Parallel()
	for _, acknowledges := range []bool{false, true} {
		t.Run(fmt.Sprint(acknowledges), func(t *testing.T) {
			t.Parallel()
			g := oneSlot(t, gitlabtest.Config{Acknowledges: acknowledges})
			marker := filepath.Join(t.TempDir(), "ran")
			var calls atomic.Int64
			g.fake.Fail(func(req *http.Request) *gitlabtest.Fault {
				if req.Method == http.MethodPut && calls.Add(1) == 1 {
					g.fake.Cancel(1)
				}
				return nil
			})
			got := g.ended(g.fake.Add(scriptJob(g.url, "touch "+marker)))
			require.Equal(t, gitlabtest.Canceled, got.Status)
			g.next()
			require.NoFileExists(t, marker)
			require.NotContains(t, string(got.Trace), "touch")
		})
	}
}

// The server ends a job whose trace is too large, and forgets one that was deleted. Both end on the VM, too.
func TestAJobThatGitLabHasEndedEndsOnTheVM(t *testing.T) {
	t.Parallel()
	for name, forgets := range map[string]bool{"trace": false, "deleted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := oneSlot(t, gitlabtest.Config{MaxTrace: 3000})
			gone := filepath.Join(t.TempDir(), "gone")
			script := []string{"trap 'touch " + gone + "; exit 1' TERM", "echo begins", "seq 2000; sleep 600 & wait"}
			if forgets {
				script[2] = "sleep 600 & wait"
				g.fake.Fail(func(req *http.Request) *gitlabtest.Fault {
					if strings.Contains(req.URL.Path, "/jobs/1") && bytes.Contains(g.fake.Job(1).Trace, []byte("begins\n")) {
						g.fake.End(1, gitlabtest.Failed)
						return &gitlabtest.Fault{Status: http.StatusNotFound, Text: `{"message":"404 Not found"}`}
					}
					return nil
				})
				script[1] += "; sleep 0.1; echo on"
			}
			got := g.ended(g.fake.Add(scriptJob(g.url, script...)))
			require.Equal(t, gitlabtest.Failed, got.Status)
			require.Zero(t, got.Final, "nothing more is reported")
			g.next()
			require.FileExists(t, gone)
		})
	}
}

// withArtifact returns a job that uploads a file of 5,000 bytes.
func withArtifact(url string) map[string]any {
	job := scriptJob(url, "head -c 5000 /dev/urandom >out.bin")
	job["artifacts"] = []any{map[string]any{
		"paths": []string{"out.bin"}, "artifact_type": "archive", "artifact_format": "zip", "when": "on_success",
	}}
	return job
}

// Artifacts that are too large for the server fail the job, which says so.
func TestArtifactsThatGitLabFindsTooLargeFailTheJob(t *testing.T) {
	t.Parallel()
	g := oneSlot(t, gitlabtest.Config{MaxArtifact: 1000})
	got := g.ended(g.fake.Add(withArtifact(g.url)))
	require.Equal(t, gitlabtest.Failed, got.Status, "%s", got.Trace)
	require.Contains(t, string(got.Trace), "413")
	require.Empty(t, got.Artifacts)
	g.next()
}

// The server redirects artifacts to a store, which answers 503 three times: they arrive all the same.
func TestArtifactsArriveAtAStoreThatIsAwayForAWhile(t *testing.T) {
	t.Parallel()
	var g *gitLab
	var calls atomic.Int64
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) <= 3 {
			w.Header().Set("Retry-After", "0")
			http.Error(w, "slow down", http.StatusServiceUnavailable)
			return
		}
		g.fake.ServeHTTP(w, r)
	}))
	t.Cleanup(store.Close)
	g = oneSlot(t, gitlabtest.Config{Store: store.URL})
	got := g.ended(g.fake.Add(withArtifact(g.url)))
	require.Equal(t, gitlabtest.Success, got.Status, "%s", got.Trace)
	require.NotEmpty(t, got.Artifacts["archive"])
	require.EqualValues(t, 4, calls.Load())
}
