package engine

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// patience bounds the waits of tests for events that must happen. No test needs all of it.
const patience = 3 * time.Minute

// trial is a job under test.
type trial struct {
	*Runner
	t              testing.TB
	place          Place
	stdout, stderr *remotetest.Buffer
	events         []string // "name status"
}

// newTrial makes a job of the steps in yaml. The environment of the runner has a PATH and little else.
func newTrial(t testing.TB, yaml string, change ...func(*Config)) *trial {
	t.Helper()
	def, err := lang.Parse("job.yml", []byte(yaml))
	require.NoError(t, err)
	tr := &trial{t: t, stdout: &remotetest.Buffer{}, stderr: &remotetest.Buffer{}}
	tr.place = Place{WorkDir: t.TempDir(), ScriptDir: t.TempDir(), Stdout: tr.stdout, Stderr: tr.stderr}
	cfg := Config{
		Definition: def,
		Places:     lang.NewLocator("job.yml", []byte(yaml)),
		RunnerEnv:  []string{"PATH=" + os.Getenv("PATH")},
		Observe:    func(r StepResult) { tr.events = append(tr.events, r.Name+" "+r.Status.String()) },
	}
	for _, c := range change {
		c(&cfg)
	}
	tr.Runner = New(cfg)
	return tr
}

// files puts files into the job's directory; a name that ends in .sh can be executed.
func (tr *trial) files(texts map[string]string) *trial {
	tr.t.Helper()
	remotetest.WriteFiles(tr.t, tr.place.WorkDir, texts)
	return tr
}

// succeed runs the job, which must succeed, and returns its result.
func (tr *trial) succeed() Result {
	tr.t.Helper()
	res := tr.run()
	require.Equal(tr.t, Success, res.Status, "%s\n%s", res.Message, tr.stderr)
	return res
}

// fail runs the job, which must fail with the message.
func (tr *trial) fail(message string) Result {
	tr.t.Helper()
	res := tr.run()
	require.Equal(tr.t, Failure, res.Status)
	require.Equal(tr.t, message, res.Message)
	return res
}

// run runs the job to its end.
func (tr *trial) run() Result {
	tr.t.Helper()
	return <-tr.start(tr.t.Context())
}

// start runs the job in the background. The test waits for its end in any case.
func (tr *trial) start(ctx context.Context) <-chan Result {
	tr.t.Helper()
	results := make(chan Result, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		results <- tr.Run(ctx, tr.place)
	}()
	tr.t.Cleanup(func() {
		tr.Stop("the test is over", 0)
		<-done
		entries, err := os.ReadDir(tr.place.ScriptDir)
		require.NoError(tr.t, err)
		require.Empty(tr.t, entries, "scripts are removed")
	})
	return results
}

// alive reports whether the process whose number is in text lives.
func alive(t testing.TB, text string) bool {
	t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(text))
	require.NoError(t, err)
	return unix.Kill(pid, 0) == nil
}

func statuses(results []StepResult) []string {
	list := make([]string, len(results))
	for i, r := range results {
		list[i] = r.Name + " " + r.Status.String()
	}
	return list
}

func anyOf(values map[string]expr.Value) map[string]any {
	all := map[string]any{}
	for name, v := range values {
		all[name] = v.Any()
	}
	return all
}
