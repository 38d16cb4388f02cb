package manager_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/instance/manager"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/managed"
	"github.com/stepmux/stepmux/internal/testing/npmtest"
)

// workflowOf returns the request for a workflow of jobs, as acts returns them. The manager gets the project with the
// action ./act.
func (r *running) workflowOf(jobs ...string) *pb.SubmitPipelineRequest {
	r.t.Helper()
	if _, err := exec.LookPath("node"); err != nil {
		r.t.Skip("part missing: node")
	}
	files, err := npmtest.Files()
	require.NoError(r.t, err)
	text, digest := archiveOf(r.t, files)
	_, err = r.keep(text, digest)
	require.NoError(r.t, err)
	source, _, _, err := managed.Source(standalone.Source{
		Name: "w.yml", Text: []byte("on: push\njobs:\n" + strings.Join(jobs, "")), Format: standalone.GitHub,
		WorkDir: r.t.TempDir(), Elsewhere: true,
	})
	require.NoError(r.t, err)
	return &pb.SubmitPipelineRequest{
		Source: source, Project: digest, ProjectBytes: int64(len(text)), Repository: "r",
		Services: &pb.BuildServices{Scopes: []string{"refs/heads/main"}},
	}
}

// acts returns a job that calls the services.
func acts(name, keys string, do ...string) string {
	text, err := json.Marshal(strings.Join(do, "\n"))
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf("  %s:\n    %s\n    steps: [{uses: ./act, with: {do: %s, packages: $PACKAGES}}]\n", name,
		keys, text)
}

const noKeys = "runs-on: x"

// Jobs of a workflow find the artifacts of the same pipeline, and the caches of the project by their scopes, also if
// the manager ends in between.
func TestActionsOfAPipelineFindTheirServices(t *testing.T) {
	t.Parallel()
	f := withPipelines(newFleet(t))
	m := f.start(t)
	again := filepath.Join(t.TempDir(), "again")
	first := m.workflowOf(
		acts("make", noKeys, "keep a one", "keep b two", "save k-1 cached", "restore k-2 k-", "save k-1 other"),
		acts("breaks", "needs: make", "get a", "keep own first", "awaits "+again, "keep a stolen"),
		acts("use", "needs: breaks", "list", "get a", "get own"),
	)
	id := m.submitPipeline(first)
	log := func(p *pb.Pipeline, job string) string {
		t.Helper()
		return m.logOf(p, job)
	}
	p := m.awaitPipeline(id, func(p *pb.Pipeline) bool { return strings.Contains(jobsOf(p), "make success") })
	require.Contains(t, log(p, "make"), "kept a\nsent b\nkept b\nsaved k-1\nk-2 found k-1: cached\nnot saved: a cache")
	build := ""
	m.awaitPipeline(id, func(p *pb.Pipeline) bool {
		for _, j := range p.GetJobs() {
			if j.GetName() == "breaks" {
				build = j.GetBuild()
			}
		}
		return build != ""
	})
	m.await(build, "kept own")
	m.stop() // while a job uses the services
	require.NoError(t, os.WriteFile(again, nil, 0o600))
	m = f.start(t)
	p = m.restOf(id)
	require.Equal(t, "breaks failed (step \"step_1\"), make success, use skipped (\"breaks\": failure)", jobsOf(p))
	require.Contains(t, log(p, "breaks"), "a is one\n")
	require.Contains(t, log(p, "breaks"), `the run has an artifact "a" already`)

	// A retry has the artifacts of the jobs that succeeded, and replaces those of the attempt before.
	_, err := m.RetryPipeline(t.Context(), &pb.RetryPipelineRequest{Id: id})
	require.NoError(t, err)
	p = m.restOf(id)
	require.Equal(t, "breaks success, make success, use success", jobsOf(p))
	require.Contains(t, log(p, "breaks"), "kept own\n")
	require.Contains(t, log(p, "use"), "all: a b own\na is stolen\nown is first\n")

	// Another pipeline has the caches, and no artifacts of this one. Other projects and branches have neither.
	other := m.workflowOf(acts("use", noKeys, "list", "get a", "restore k-1", "restore k-2 k"))
	p = m.restOf(m.submitPipeline(other))
	require.Contains(t, log(p, "use"), "all: \na is missing\nk-1 found k-1: cached\nk-2 found k-1: cached\n")
	for _, change := range []func(){
		func() { other.Services.Scopes = []string{"refs/heads/other"} },
		func() { other.Services.Scopes, other.Repository = []string{"refs/heads/main"}, "other" },
	} {
		change()
		p = m.restOf(m.submitPipeline(other))
		require.Contains(t, log(p, "use"), "k-1 found nothing\nk-2 found nothing\n")
	}
	other.Services.Scopes, other.Repository = []string{"refs/heads/other", "refs/heads/main"}, "r"
	p = m.restOf(m.submitPipeline(other))
	require.Contains(t, log(p, "use"), "k-1 found k-1: cached\n", "that of the default branch")

	// They end with the record of the pipeline. A cache whose file is not kept any more can be saved again.
	require.Equal(t, 3, m.m.KeptArtifacts(t, id))
	m.m.ForgetPipelines(t)
	require.Equal(t, 3, m.m.KeptArtifacts(t, id), "its record is there")
	m.m.RemovePipeline(t, id)
	m.m.ForgetPipelines(t)
	require.Zero(t, m.m.KeptArtifacts(t, id))
	files, err := filepath.Glob(filepath.Join(f.dir, "projects", "*"))
	require.NoError(t, err)
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && string(text) == "cached" {
			require.NoError(t, os.Remove(file))
		}
	}
	other = m.workflowOf(acts("use", noKeys, "restore k-1", "save k-1 new", "restore k-1"))
	p = m.restOf(m.submitPipeline(other))
	require.Contains(t, log(p, "use"), "k-1 found nothing\nsaved k-1\nk-1 found k-1: new\n")
	left, err := os.ReadDir(filepath.Join(f.dir, "uploads"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// The real clients upload and download by a manager. A cache that a job has saved or restored on a VM is not sent
// there.
func TestTheClientsOfActionsWorkWithAManager(t *testing.T) {
	t.Parallel()
	f := withPipelines(newFleet(t))
	f.sent = &atomic.Int64{}
	m := f.start(t)
	packages, err := npmtest.Install(t.TempDir(), npmtest.Clients)
	if err != nil {
		t.Skip(err)
	}
	job := func(name, keys string, do ...string) string {
		return strings.ReplaceAll(acts(name, keys, do...), "$PACKAGES", packages)
	}
	p := m.restOf(m.submitPipeline(m.workflowOf(
		job("make", noKeys, "upload a 3000000", "cache k 2000000", "cache k3 2000001 cache-3"),
		job("use", "needs: make", "download a 3000000"),
	)))
	require.Equal(t, "make success, use success", jobsOf(p), "%s\n%s", m.logOf(p, "make"), m.logOf(p, "use"))
	require.Contains(t, m.logOf(p, "make"), "uploaded a true\n")
	require.Equal(t, 2, strings.Count(m.logOf(p, "make"), "cached true\n"))
	require.Contains(t, m.logOf(p, "use"), "downloaded a true\n")

	restore := m.workflowOf(job("restore", noKeys, "restoreCache k 2000000", "restoreCache k3 2000001 cache-3"))
	sent := func() int64 {
		before := f.sent.Load()
		log := m.logOf(m.restOf(m.submitPipeline(restore)), "restore")
		require.Contains(t, log, "restored k true\n")
		require.Contains(t, log, "restored k3 true\n")
		return f.sent.Load() - before
	}
	require.Less(t, sent(), int64(100_000), "the VM on which they were saved")
	own, _ := m.wait(m.submit(`printf %s "${XDG_CACHE_HOME:-$HOME/.cache}"`), 0) // that of the login on the VM
	files, err := os.ReadDir(filepath.Join(f.dir, "projects"))
	require.NoError(t, err)
	for _, file := range files { // as on another VM
		_ = os.Remove(filepath.Join(own, "stepmux-steps", "projects", file.Name())) // the VM has not kept all
	}
	require.Greater(t, sent(), int64(4_000_000))
	require.Less(t, sent(), int64(100_000), "the VM on which they were restored")
}

// A neighbour needs the token of a job that runs, whatever it knows of others. It can hold connections of one job only.
func TestANeighbourOfAPipelinesJobIsRefused(t *testing.T) {
	t.Parallel()
	f := withPipelines(newFleet(t))
	m := f.start(t)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	id := m.submitPipeline(m.workflowOf(
		acts("ends", noKeys, "keep a secret", "token "+file("ended")),
		acts("runs", "needs: ends", "token "+file("runs"), "write "+file("begun")+" x", "awaits "+file("open"), "get a"),
	))
	eventually(t, func() bool {
		_, err := os.Stat(file("begun"))
		return err == nil
	})
	other := m.submitPipeline(m.workflowOf(
		acts("other", noKeys, "token "+file("other"), "hold 200", "write "+file("held")+" x", "awaits "+file("open")),
	))
	eventually(t, func() bool {
		_, err := os.Stat(file("held"))
		return err == nil
	})
	read := func(name string) (url, token string) {
		text, err := os.ReadFile(file(name))
		require.NoError(t, err)
		url, token, _ = strings.Cut(string(text), "\n")
		return url, token
	}
	url, own := read("runs")
	_, ended := read("ended")
	_, others := read("other")
	list := func(token string) (status int, names int) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			url+"twirp/github.actions.results.api.v1.ArtifactService/ListArtifacts", strings.NewReader("{}"))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultTransport.RoundTrip(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		var said struct{ Artifacts []any }
		_ = json.NewDecoder(resp.Body).Decode(&said) // a refusal has none
		return resp.StatusCode, len(said.Artifacts)
	}
	for _, token := range []string{"", "x", ended, own[:len(own)-1], own + "x", strings.Split(own, ".")[2]} {
		status, _ := list(token)
		require.Equal(t, http.StatusUnauthorized, status, token)
	}
	status, names := list(others)
	require.Equal(t, []int{http.StatusOK, 0}, []int{status, names}, "a pipeline of its own")
	status, names = list(own)
	require.Equal(t, []int{http.StatusOK, 1}, []int{status, names})
	require.NoError(t, os.WriteFile(file("open"), nil, 0o600))
	p := m.restOf(id)
	require.Contains(t, m.logOf(p, "runs"), "a is secret\n")
	require.Equal(t, "other success", jobsOf(m.restOf(other)))
}

// Another manager of a cluster that runs a job has the artifacts and caches of the first.
func TestServicesOfAClusterAreAtEachManager(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	pipelines := func() *running { return c.memberWith(t, c.nats, withPipelines(&fleet{}).change) }
	a := pipelines()
	b := pipelines()
	eventually(t, func() bool { return a.m.Holds() == 1 && b.m.Holds() == 1 })
	text := strings.Repeat("x", 3000)
	var uses []string
	for i := range 8 { // on both VMs
		uses = append(uses, acts(fmt.Sprintf("use%d", i), "needs: make", "get a", "restore k"))
	}
	id := a.submitPipeline(a.workflowOf(append(uses, acts("make", noKeys, "keep a "+text, "save k "+text))...))
	p := b.restOf(id)
	on := map[string]bool{}
	for _, j := range p.GetJobs() {
		require.Equal(t, "success", j.GetStatus(), j.GetName())
		if strings.HasPrefix(j.GetName(), "use") {
			require.Contains(t, b.logOf(p, j.GetName()), "a is "+text+"\nk found k: "+text+"\n")
			build, err := b.Get(t.Context(), &pb.GetRequest{Id: j.GetBuild()})
			require.NoError(t, err)
			on[build.GetInstance()] = true
		}
	}
	require.Len(t, on, 2)
	a.stop()
	eventually(t, func() bool { return b.m.Holds() == 2 })
	p = b.restOf(b.submitPipeline(b.workflowOf(acts("later", noKeys, "restore k"))))
	require.Contains(t, b.logOf(p, "later"), "k found k: "+text)
}

// An artifact that is too large is refused. Artifacts of pipelines that have not ended keep their room, and those of
// others make room.
func TestWithoutRoomAnArtifactIsRefusedByName(t *testing.T) {
	t.Parallel()
	f := withPipelines(newFleet(t))
	f.capacity = 3
	pipelines := f.change
	f.change = func(cfg *manager.Config) {
		pipelines(cfg)
		cfg.FileBytes = 60_000
	}
	m := f.start(t)
	big := strings.Repeat("x", 15_000)
	p := m.restOf(m.submitPipeline(m.workflowOf(acts("a", noKeys, "keep a "+big, "get a", "keep b "+big+big))))
	require.Contains(t, m.logOf(p, "a"), "kept a\na is xxx")
	require.Contains(t, m.logOf(p, "a"), "larger than stepmux accepts")
	require.Equal(t, "a failed (step \"step_1\")", jobsOf(p))

	open := filepath.Join(t.TempDir(), "open")
	var held []string
	for i := range 2 {
		id := m.submitPipeline(m.workflowOf(acts("a", noKeys, fmt.Sprintf("keep a %d%s", i, big), "awaits "+open, "get a")))
		eventually(t, func() bool { return m.m.KeptArtifacts(t, id) == 1 })
		held = append(held, id)
	}
	p = m.restOf(m.submitPipeline(m.workflowOf(acts("a", noKeys, "keep a 2"+big))))
	require.Contains(t, m.logOf(p, "a"), "the files of other jobs take all the room")
	require.NoError(t, os.WriteFile(open, nil, 0o600))
	for i, id := range held {
		p := m.restOf(id)
		require.Contains(t, m.logOf(p, "a"), fmt.Sprintf("a is %dxxx", i))
	}
	p = m.restOf(m.submitPipeline(m.workflowOf(acts("a", noKeys, "keep a 2"+big, "get a"))))
	require.Contains(t, m.logOf(p, "a"), "a is 2xxx")
}

// An upload leaves the manager room on the disk: it would end without any.
func TestAnUploadLeavesTheManagerRoomOnTheDisk(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small disk")
	}
	f := withPipelines(newFleet(t))
	require.NoError(t, os.Mkdir(f.dir, 0o700))
	require.NoError(t, unix.Mount("tmpfs", f.dir, "tmpfs", 0, "size=80m"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(f.dir, unix.MNT_DETACH)) })
	m := f.start(t)
	p := m.restOf(m.submitPipeline(m.workflowOf(
		acts("a", noKeys, "flood a 40000000", "flood b 40000000", "keep c small", "get c"))))
	require.Equal(t, "a success", jobsOf(p), m.logOf(p, "a"))
	require.Equal(t, 2, strings.Count(m.logOf(p, "a"), `"msg":"there is no room for it on the disk`), m.logOf(p, "a"))
	require.Contains(t, m.logOf(p, "a"), "c is small\n")
	m.stop()
}
