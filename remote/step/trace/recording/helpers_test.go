package recording

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/fetch"
	"github.com/stepmux/stepmux/remote/step/lang"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace"
)

const cancelled = "the job was cancelled"

// trial is a recorded job.
type trial struct {
	*engine.Runner
	*Recorder
	t              testing.TB
	place          engine.Place
	stdout, stderr *remotetest.Buffer
}

// traced is how most trials are recorded.
func traced() Config { return Config{Source: trace.Source{Kind: trace.FromFile}, Version: "v1"} }

// newTrial makes a job of the steps in yaml, and records it. The environment of the runner has a PATH and little else.
func newTrial(t testing.TB, yaml string, record Config, change ...func(*engine.Config)) *trial {
	t.Helper()
	def, err := lang.Parse("job.yml", []byte(yaml))
	require.NoError(t, err)
	tr := &trial{t: t, stdout: &remotetest.Buffer{}, stderr: &remotetest.Buffer{}}
	job := engine.Config{Definition: def, RunnerEnv: []string{"PATH=" + os.Getenv("PATH")}, Secrets: &mask.Set{}}
	for _, c := range change {
		c(&job)
	}
	tr.Recorder = New(job, record)
	tr.job.Events = tr.Recorder
	tr.place = engine.Place{
		WorkDir: t.TempDir(), ScriptDir: t.TempDir(), Stdout: tr.Tap(0, tr.stdout), Stderr: tr.Tap(1, tr.stderr),
	}
	t.Cleanup(tr.Close)
	tr.Runner = engine.New(tr.job)
	return tr
}

// files puts files into the job's directory. Files whose names end in .sh are executable.
func (tr *trial) files(texts map[string]string) *trial {
	tr.t.Helper()
	remotetest.WriteFiles(tr.t, tr.place.WorkDir, texts)
	return tr
}

// succeed runs the job, which must succeed.
func (tr *trial) succeed() engine.Result {
	tr.t.Helper()
	res := tr.run()
	require.Equal(tr.t, engine.Success, res.Status, "%s\n%s", res.Message, tr.stderr)
	return res
}

// run runs the job to its end.
func (tr *trial) run() engine.Result {
	tr.t.Helper()
	return tr.Run(tr.t.Context(), tr.place)
}

// start runs the job in the background. The test waits for its end.
func (tr *trial) start(ctx context.Context) <-chan engine.Result {
	tr.t.Helper()
	results := make(chan engine.Result, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		results <- tr.Run(ctx, tr.place)
	}()
	tr.t.Cleanup(func() {
		tr.Stop("the test is over", 0)
		<-done
	})
	return results
}

// withStore lets a job fetch, into a cache of its own.
func withStore(t testing.TB) func(*engine.Config) {
	t.Helper()
	store, err := fetch.New(fetch.Config{Dir: filepath.Join(fetchtest.CacheDir(t), "cache")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return func(c *engine.Config) { c.Fetcher = store }
}

// says is a step that prints text.
func says(text string) string {
	return "spec: {}\n---\nexec: {command: [echo, '" + text + "']}\n"
}

// serve serves a repository with files on the branch main and as the tag v1.
func serve(t testing.TB, name string, files map[string]string) (*fetchtest.GitServer, *fetchtest.Repository) {
	t.Helper()
	root := t.TempDir()
	r := fetchtest.NewRepository(t, filepath.Join(root, name))
	r.Git("tag", "v1", r.Commit("main", fetchtest.Texts(files)))
	return fetchtest.ServeGit(t, root), r
}
