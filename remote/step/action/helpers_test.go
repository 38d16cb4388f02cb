package action

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/fetch"
	"github.com/stepmux/stepmux/remote/step/lang"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace"
	"github.com/stepmux/stepmux/remote/step/trace/recording"
)

// trial is a job with actions.
type trial struct {
	t      testing.TB
	cfg    engine.Config
	action Config
	place  engine.Place
	log    *remotetest.Buffer
	trace  *trace.Trace
	salt   *mask.Salt
}

func newTrial(t testing.TB) *trial {
	t.Helper()
	tr := &trial{t: t, log: &remotetest.Buffer{}}
	tr.place = engine.Place{WorkDir: t.TempDir(), ScriptDir: t.TempDir(), Stdout: tr.log, Stderr: tr.log}
	tr.cfg.RunnerEnv = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	return tr
}

// file puts a file into the job's directory; a name that ends in .sh can be executed.
func (tr *trial) file(name, text string) {
	tr.t.Helper()
	path := filepath.Join(tr.place.WorkDir, name)
	require.NoError(tr.t, os.MkdirAll(filepath.Dir(path), 0o755))
	mode := os.FileMode(0o644)
	if strings.HasSuffix(name, ".sh") {
		mode = 0o755
	}
	require.NoError(tr.t, os.WriteFile(path, []byte(text), mode))
}

// remotes lets the job fetch repositories that are below dir, a directory for each owner.
func (tr *trial) remotes(dir string) {
	tr.t.Helper()
	mirrors, err := (&Config{Base: dir}).Mirrors()
	require.NoError(tr.t, err)
	store, err := fetch.New(fetch.Config{Dir: fetchtest.CacheDir(tr.t), Mirrors: mirrors})
	require.NoError(tr.t, err)
	tr.t.Cleanup(func() { require.NoError(tr.t, store.Close()) })
	tr.cfg.Fetcher = store
}

// workflow makes the steps those of a workflow's job.
func (tr *trial) workflow(steps string) *trial {
	tr.t.Helper()
	return tr.text("on: push\njobs:\n  test:\n    steps:\n" + indent(steps, "      "))
}

// text makes the job one of a workflow.
func (tr *trial) text(workflow string) *trial {
	tr.t.Helper()
	job, err := json.Marshal([]any{map[string]any{
		"name": "job", "step": "builtin://github/job",
		"inputs": map[string]any{"workflow": lang.Escape(workflow)},
	}})
	require.NoError(tr.t, err)
	return tr.steps(string(job))
}

// steps makes the steps those of the job.
func (tr *trial) steps(text string) *trial {
	tr.t.Helper()
	def, err := lang.Parse("job.yml", []byte(text))
	require.NoError(tr.t, err)
	tr.cfg.Definition = def
	return tr
}

func indent(text, by string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) != "" {
			out.WriteString(by)
		}
		out.WriteString(line)
	}
	return out.String()
}

// run runs the job, with a trace.
func (tr *trial) run() engine.Result {
	tr.t.Helper()
	return tr.runWith(func(*engine.Runner) {})
}

// runWith runs the job, after begin was called.
func (tr *trial) runWith(begin func(*engine.Runner)) engine.Result {
	tr.t.Helper()
	cfg := tr.cfg
	cfg.Secrets, cfg.Language = &mask.Set{}, New(tr.action)
	recorder := recording.New(cfg, recording.Config{Version: "test", Salt: tr.salt})
	cfg.Events = recorder
	place := tr.place
	place.ScriptDir = tr.t.TempDir()
	place.Stdout, place.Stderr = recorder.Tap(0, place.Stdout), recorder.Tap(1, place.Stderr)
	r := engine.New(cfg)
	begin(r)
	started := time.Now()
	res := r.Run(tr.t.Context(), place)
	tr.trace = recorder.Trace(res, started, time.Now())
	return res
}

// succeed runs the job, which must succeed.
func (tr *trial) succeed() engine.Result {
	tr.t.Helper()
	res := tr.run()
	require.Equal(tr.t, engine.Success, res.Status, "%s\n%s", res.Message, tr.log)
	return res
}

// fail runs the job, which must fail with the message.
func (tr *trial) fail(message string) engine.Result {
	tr.t.Helper()
	res := tr.run()
	require.Equal(tr.t, engine.Failure, res.Status, "%s", tr.log)
	require.Contains(tr.t, res.Message, message)
	return res
}

// needs skips the test if a program is missing.
func needs(t testing.TB, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("part missing: %s", program)
	}
	return path
}

// texts are values as texts.
func texts(values map[string]expr.Value) map[string]string {
	all := map[string]string{}
	for name, v := range values {
		all[name] = v.Text()
	}
	return all
}
