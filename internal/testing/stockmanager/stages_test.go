package stockmanager_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/artifactstest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/internal/testing/stockmanager"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
)

//stepmux:faults manager | Artifacts that are too large (413) fail the job once, with the server's message; a server
//stepmux:more that is away for a while (503) does not; without the artifacts it needs, a job fails
//stepmux:with internal/testing/stockmanager.TestStockManagersJobsOutliveAServerThatIsAwayForAWhile
//stepmux:with internal/testing/stockmanager.TestStockManagersJobFailsWithoutTheArtifactsItNeeds
func TestStockManagersJobFailsIfItsArtifactsAreTooLarge(t *testing.T) {
	g := newGitLab(t, func(w http.ResponseWriter, r *http.Request) bool {
		_, _ = io.Copy(io.Discard, r.Body)
		artifactstest.Refuse(w, http.StatusRequestEntityTooLarge, "413 Request Entity Too Large")
		return true
	})
	job := g.job("1", "mkdir dist; head -c 1000000 /dev/urandom >dist/data")
	job.Artifacts = []stockmanager.Artifact{dist}
	result, log := g.run(t, job)
	require.Equal(t, stockmanager.Result{
		State: runnerproto.Status_failure, Message: "upload_artifacts_on_success: exit status 1", ExitCode: 1,
	}, result)
	require.Regexp(t, `(?m)^FATAL: upload artifacts .*413 Request Entity Too Large`, log)
	require.NotContains(t, log, artifactstest.Token)
	require.Equal(t, 1, g.posts(), "the upload was repeated")
	require.Empty(t, g.server.Uploads())
}

func TestStockManagersJobsOutliveAServerThatIsAwayForAWhile(t *testing.T) {
	var away atomic.Int32
	g := newGitLab(t, func(w http.ResponseWriter, _ *http.Request) bool {
		if away.Add(-1) < 0 {
			return false
		}
		artifactstest.Refuse(w, http.StatusServiceUnavailable, "503 Service Unavailable")
		return true
	})
	build := g.job("1", "mkdir dist; head -c 1000000 /dev/urandom >dist/data")
	build.Artifacts = []stockmanager.Artifact{dist}
	away.Store(2)
	_, err := g.succeed(t, build)
	require.NoError(t, err)
	require.Equal(t, 3, g.posts())
	require.Len(t, g.server.Uploads(), 1)

	test := g.job("2", "test -s dist/data")
	test.Dependencies = []string{"1"}
	away.Store(1)
	_, err = g.succeed(t, test)
	require.NoError(t, err)
	want, err := files(build.BuildDir)
	require.NoError(t, err)
	got, err := files(test.BuildDir)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

//stepmux:faults manager | A job goes on without its cache: none is there, the store refuses, or it has a link that
//stepmux:more leads outside and the job refuses those. Then a fallback key is tried
//stepmux:with internal/testing/stockmanager.TestStockManagersCacheHasFallbackKeysAndMayHaveLinksThatLeadOutside
func TestStockManagersJobGoesOnIfTheStoreOfItsCacheRefuses(t *testing.T) {
	g := newGitLab(t, func(w http.ResponseWriter, _ *http.Request) bool {
		http.Error(w, "<Error><Code>AccessDenied</Code></Error>", http.StatusForbidden)
		return true
	})
	job := g.job("1", "echo hello; mkdir deps; echo 1 >deps/data")
	job.Caches = []stockmanager.Cache{{
		Paths: []string{"deps"}, Archives: []stockmanager.Archive{g.on("vm", "main", true)},
	}}
	log, err := g.succeed(t, job)
	require.NoError(t, err)
	require.NoError(t, counts(log, map[string]int{
		"Failed to extract cache\n": 1, "hello\n": 1, "Failed to create cache\n": 1, "FATAL: ": 2,
	}))
}

// The second job finds its cache under the fallback key only. It adds a symbolic link to /bin/sh and keeps the cache
// under the key of its branch. The third job refuses such links, so it takes the cache of the fallback key. The fourth
// does not refuse them.
func TestStockManagersCacheHasFallbackKeysAndMayHaveLinksThatLeadOutside(t *testing.T) {
	g := newGitLab(t, nil)
	run := func(id, branch, script string, variables ...*runnerproto.Variable) (job stockmanager.Job, log string) {
		job = g.job(id, script)
		job.Variables = variables
		job.Caches = []stockmanager.Cache{{Paths: []string{"deps"}, Archives: []stockmanager.Archive{
			g.on("vm-"+id, branch, true), g.on("vm-"+id, "main", true),
		}}}
		log, err := g.succeed(t, job)
		require.NoError(t, err)
		return job, log
	}
	_, log := run("1", "main", "mkdir deps; echo from main >deps/data")
	require.NoError(t, counts(log, map[string]int{
		"FATAL: there is no cache of this name\n": 2, "Failed to extract cache\n": 2,
	}))
	_, log = run("2", "branch", "cat deps/data; echo from branch >>deps/data; ln -s /bin/sh deps/sh")
	require.NoError(t, counts(log, map[string]int{
		"Failed to extract cache\n": 1, "Successfully extracted cache\n": 1, "from main\n": 1,
		"symbolic links lead outside of the project's directory, as deps/sh": 1,
	}))
	_, log = run("3", "branch", "cat deps/data", &runnerproto.Variable{Key: "STEPMUX_OUTSIDE_LINKS", Value: "false"})
	require.NoError(t, counts(log, map[string]int{
		"the symbolic link leads to /bin/sh, outside of the project's directory": 1, "Failed to extract cache\n": 1,
		"Successfully extracted cache\n": 1, "from main\n": 1, "from branch\n": 0,
	}))
	job, log := run("4", "branch", "cat deps/data")
	require.NoError(t, counts(log, map[string]int{
		"Failed to extract cache\n": 0, "Successfully extracted cache\n": 1, "from main\nfrom branch\n": 1,
	}))
	target, err := os.Readlink(filepath.Join(job.BuildDir, "deps", "sh"))
	require.NoError(t, err)
	require.Equal(t, "/bin/sh", target)
}

func TestStockManagersJobFailsWithoutTheArtifactsItNeeds(t *testing.T) {
	g := newGitLab(t, nil)
	job := g.job("2", "echo hello")
	job.Dependencies = []string{"1"}
	result, log := g.run(t, job)
	require.Equal(t, stockmanager.Result{
		State: runnerproto.Status_failure, Message: "download_artifacts: exit status 1", ExitCode: 1,
	}, result)
	require.Regexp(t, `(?m)^FATAL: download artifacts of job 1.*404 Not Found`, log)
}

//stepmux:faults manager | A job that fails keeps its exit code, and uploads what it always uploads
func TestFailedJobOfStockManagerUploadsItsAlwaysArtifactsAndKeepsItsExitCode(t *testing.T) {
	g := newGitLab(t, nil)
	job := g.job("1", "mkdir dist; echo 1 >dist/data; echo 2 >report; exit 7")
	job.Artifacts = []stockmanager.Artifact{dist, {Name: "report", Paths: []string{"report"}, Always: true}}
	job.Caches = []stockmanager.Cache{{
		Paths: []string{"dist"}, Archives: []stockmanager.Archive{g.on("vm", "main", true)},
	}}
	result, log := g.run(t, job)
	require.Equal(t, runnerproto.Status_failure, result.State)
	require.Equal(t, 7, result.ExitCode, result.Message)
	require.Len(t, g.server.Uploads(), 1)
	require.Equal(t, "report.zip", g.server.Uploads()[0].Filename)
	require.NotContains(t, log, "Created cache")
}

// The guard of the manager's scripts only warns. The steps then fail, since they need the program.
//
//stepmux:faults manager | A VM without the runner's program: scripts warn and skip artifacts and caches
func TestStockManagersScriptsWarnIfTheVMHasNoRunner(t *testing.T) {
	g := newGitLab(t, nil)
	g.Runner = filepath.Join(filepath.Dir(g.program), "gitlab-runner") // the machine of the test may have another
	require.NoError(t, os.Remove(g.Runner))
	job := g.job("2", "echo hello")
	job.Dependencies = []string{"1"}
	job.Caches = []stockmanager.Cache{{
		Paths: []string{"deps"}, Archives: []stockmanager.Archive{g.on("vm", "main", true)},
	}}
	log := new(sshtest.Log)
	job.Log = log
	_, err := g.Execute(sshtest.Within(t), job)
	require.ErrorContains(t, err, "native steps require gitlab-runner on the instance")
	require.Equal(t, "Missing gitlab-runner. Extracting cache is disabled.\n"+
		"Missing gitlab-runner. Artifacts downloading is disabled.\n", log.String())
	require.Empty(t, g.server.Requests())
}
