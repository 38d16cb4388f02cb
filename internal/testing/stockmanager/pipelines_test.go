package stockmanager_test

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/artifactstest"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/internal/testing/stockmanager"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
)

// gitlab is a VM whose jobs have artifacts and caches.
type gitlab struct {
	*vm
	server *artifactstest.Server
	caches string // where caches are on the VM
}

// newGitLab starts a VM, and a server that lets answer answer in its place, if that is not nil. The VM's programs make
// all their temporary files where nothing must be left.
func newGitLab(t *testing.T, answer func(w http.ResponseWriter, r *http.Request) bool) *gitlab {
	t.Helper()
	temp := remotetest.ShortTemp(t)
	g := &gitlab{vm: newVM(t, temp, "TMPDIR="+temp), server: artifactstest.New(t), caches: t.TempDir()}
	if answer != nil {
		g.server.Answer = func(w http.ResponseWriter, r *http.Request, _ int) bool { return answer(w, r) }
	}
	return g
}

// job returns a job of the server.
func (g *gitlab) job(id, script string) stockmanager.Job {
	job := g.vm.job(id, script)
	job.Server = stockmanager.Server{URL: g.server.URL, Token: artifactstest.Token}
	return job
}

// on returns an archive of a cache. on is the VM that has the file.
func (g *gitlab) on(on, key string, presigned bool) stockmanager.Archive {
	archive := stockmanager.Archive{File: filepath.Join(g.caches, on, key, "cache.zip")}
	if presigned {
		archive.URL = g.server.Presigned(key)
	}
	return archive
}

// posts counts the uploads that were tried, stored or not.
func (g *gitlab) posts() (n int) {
	for _, r := range g.server.Requests() {
		if r.Method == http.MethodPost {
			n++
		}
	}
	return n
}

var dist = stockmanager.Artifact{Name: "build", Paths: []string{"dist/"}, Except: []string{"dist/**/*.tmp"}}

//stepmux:faults manager | 20 jobs with artifacts and caches over a stock sshd, 5 at once: a later job gets the files
//stepmux:more of an earlier one byte by byte, with their modes and links; nothing left
func TestJobsOfTwoPipelinesHandTheirFilesOnThroughAStockManager(t *testing.T) {
	const atOnce, pipelines, jobs = 5, 2, 2 // 20 jobs
	g := newGitLab(t, nil)
	var wg sync.WaitGroup
	for branch := range atOnce {
		wg.Go(func() {
			for pipeline := range pipelines {
				if err := g.pipeline(t, fmt.Sprintf("branch-%d", branch), 1+100*branch+jobs*pipeline, pipeline > 0); err != nil {
					t.Errorf("branch %d, pipeline %d: %v", branch, pipeline, err)
				}
			}
		})
	}
	wg.Wait()
	g.requireNothingLeft(t)
	types := map[string]int{}
	for _, u := range g.server.Uploads() {
		types[u.Query.Get("artifact_type")]++
	}
	require.Equal(t, map[string]int{"archive": 2 * atOnce, "junit": 2 * atOnce}, types)
	files, err := files(g.caches)
	require.NoError(t, err)
	for file, text := range files {
		if !strings.HasPrefix(text, "d") {
			require.Contains(t, []string{"cache.zip", "metadata.json"}, filepath.Base(file))
		}
	}
}

// pipeline runs two jobs with the numbers first and first+1. The second gets the artifacts and the cache of the first.
// If cached, the first gets the cache of the branch's earlier pipeline.
func (g *gitlab) pipeline(t *testing.T, branch string, first int, cached bool) error {
	caches := func(id string) []stockmanager.Cache {
		return []stockmanager.Cache{
			{Paths: []string{"far"}, Archives: []stockmanager.Archive{g.on("vm-"+id, branch, true)}},
			{Paths: []string{"near"}, Archives: []stockmanager.Archive{g.on("vm", branch, false)}},
		}
	}
	id := fmt.Sprint(first)
	build := g.job(id, `for cache in far near; do
  if [ -e "$cache/data" ]; then echo "cache hit"; continue; fi
  mkdir -p "$cache/empty"; head -c 300000 /dev/urandom >"$cache/data"; ln -s data "$cache/link"
done
mkdir -p "dist/a deep/one"
head -c 1000000 /dev/urandom >"dist/a deep/one/zufällig"
head -c 1000000 /dev/zero >dist/zeros
: >dist/empty; echo tool >dist/tool; chmod 755 dist/tool; chmod 600 dist/empty; ln -s tool dist/link
: >dist/left.tmp; echo "<testsuites/>" >junit.xml`)
	build.Caches = caches(id)
	build.Artifacts = []stockmanager.Artifact{
		dist, {Name: "junit.xml", Paths: []string{"junit.xml"}, Format: "gzip", Type: "junit"},
	}
	log, err := g.succeed(t, build)
	if err != nil {
		return err
	}
	want := map[string]int{
		"Failed to extract cache\n": 2, "Successfully extracted cache\n": 0, "cache hit\n": 0, "Created cache\n": 2,
	}
	if cached {
		want = map[string]int{
			"Failed to extract cache\n": 0, "Successfully extracted cache\n": 2, "cache hit\n": 2, "Created cache\n": 2,
		}
	}
	if err := counts(log, want); err != nil {
		return err
	}

	id = fmt.Sprint(first + 1)
	test := g.job(id, "test -x dist/tool; rm dist/link; ln -s tool dist/link")
	test.Dependencies, test.Caches = []string{build.ID}, caches(id)
	for i := range test.Caches {
		test.Caches[i].PullOnly = true
	}
	if log, err = g.succeed(t, test); err != nil {
		return err
	}
	if err := counts(log, map[string]int{"Successfully extracted cache\n": 2, "Created cache\n": 0}); err != nil {
		return err
	}
	built, err := files(build.BuildDir)
	if err != nil {
		return err
	}
	delete(built, "dist/left.tmp") // excluded
	delete(built, "junit.xml")     // a report
	got, err := files(test.BuildDir)
	if err != nil {
		return err
	}
	if len(got) < 10 || !maps.Equal(built, got) {
		return fmt.Errorf("job %s has %v, want %v", id, got, built)
	}
	return nil
}

// succeed runs a job that must succeed, and returns its log, which must have no secret.
func (g *gitlab) succeed(t *testing.T, job stockmanager.Job) (string, error) {
	log := new(sshtest.Log)
	job.Log = log
	result, err := g.Execute(sshtest.Within(t), job)
	if err != nil || result.State != runnerproto.Status_success {
		return "", fmt.Errorf("job %s ended with %+v, %w; log: %s", job.ID, result, err, log)
	}
	for _, secret := range []string{artifactstest.Token, artifactstest.Signature} {
		if strings.Contains(log.String(), secret) {
			return "", fmt.Errorf("job %s has a secret in its log: %s", job.ID, log)
		}
	}
	return log.String(), nil
}

// counts says how often texts are in a log, if that is not as wanted.
func counts(log string, want map[string]int) error {
	for text, n := range want {
		if found := strings.Count(log, text); found != n {
			return fmt.Errorf("the log has %q %d times, want %d: %s", text, found, n, log)
		}
	}
	return nil
}

// files describes all below dir, but for dir itself: modes, and the hashes of files or the targets of links.
func files(dir string) (map[string]string, error) {
	found := map[string]string{}
	return found, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += fmt.Sprintf(" %x", sha256.Sum256(data))
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			text += " " + target
		}
		name, err := filepath.Rel(dir, path)
		found[name] = text
		return err
	})
}
