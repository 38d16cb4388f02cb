package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/step/expr"
)

const cancelled = "the job was cancelled"

func TestStopLetsAStepCleanUp(t *testing.T) {
	tr := newTrial(t, `- {name: a, script: "trap 'echo cleanup; exit 0' TERM; sleep 4716 & echo ready; wait"}`)
	results := tr.start(t.Context())
	tr.stdout.Await(t, "ready")
	tr.Stop(cancelled, patience)
	res := <-results
	require.Equal(t, Cancelled, res.Status)
	require.Equal(t, cancelled, res.Message)
	require.Zero(t, res.ExitCode)
	require.Equal(t, Cancelled, res.Steps[0].Status)
	require.Equal(t, "ready\ncleanup\n", tr.stdout.String())
}

// A shell that SIGTERM ends does not wait for its running command.
func TestStopLetsTheChildrenOfTheShellCleanUp(t *testing.T) {
	tr := newTrial(t, `
- script: |
    sh -c 'trap "sleep 3; echo child cleaned up; exit" TERM; echo ready; while :; do sleep 0.1; done'
    echo not reached
`)
	results := tr.start(t.Context())
	tr.stdout.Await(t, "ready")
	tr.Stop(cancelled, patience)
	require.Equal(t, Cancelled, (<-results).Status)
	require.Equal(t, "ready\nchild cleaned up\n", tr.stdout.String())
}

func TestStopKillsAfterTheGrace(t *testing.T) {
	tr := newTrial(t, `- {name: a, script: "trap '' TERM; echo ready; sleep 4717; sleep 4717"}`)
	results := tr.start(t.Context())
	tr.stdout.Await(t, "ready")
	tr.Stop(cancelled, 50*time.Millisecond)
	res := <-results
	require.Equal(t, Cancelled, res.Status)
	require.Equal(t, 137, res.Steps[0].ExitCode)
}

func TestLaterStopShortensTheGrace(t *testing.T) {
	tr := newTrial(t, `- {name: a, script: "trap '' TERM; echo ready; sleep 4717; sleep 4717"}`)
	results := tr.start(t.Context())
	tr.stdout.Await(t, "ready")
	tr.Stop(cancelled, time.Hour)
	tr.Stop("again", 2*time.Hour)
	tr.Stop("once more", time.Millisecond)
	require.Equal(t, cancelled, (<-results).Message, "the first reason stays")
}

func TestStopKillsTheWholeTree(t *testing.T) {
	tr := newTrial(t, `
- script: |
    sleep 4718 & echo $! > a
    (setsid sh -c 'echo $$ > b; exec sleep 4718' >/dev/null 2>&1 &)
    while [ ! -s b ]; do sleep 0.01; done
    echo ready
    sleep 4718
`)
	results := tr.start(t.Context())
	tr.stdout.Await(t, "ready")
	tr.Stop(cancelled, patience)
	<-results
	for _, name := range []string{"a", "b"} {
		pid, err := os.ReadFile(filepath.Join(tr.place.WorkDir, name))
		require.NoError(t, err)
		require.False(t, alive(t, string(pid)), name)
	}
}

func TestAfterStopOnlyStepsRunThatAlwaysDo(t *testing.T) {
	tr := newTrial(t, `
- {name: a, script: echo ready; sleep 4719}
- {name: b, script: echo not-run}
- {name: c, script: echo not-run, when: on_failure}
- {name: d, script: echo cleanup-ran; exit 7, when: always}
- {name: e, script: echo cleanup-too, when: always}
`)
	results := tr.start(t.Context())
	tr.stdout.Await(t, "ready")
	tr.Stop(cancelled, patience)
	res := <-results
	require.Equal(t, Cancelled, res.Status)
	require.Equal(t, cancelled, res.Message)
	require.Zero(t, res.ExitCode)
	require.Equal(t, []string{"a cancelled", "b skipped", "c skipped", "d failure", "e success"}, statuses(res.Steps))
	require.Equal(t, "ready\ncleanup-ran\ncleanup-too\n", tr.stdout.String())
}

func TestStopDoesNotEndTheStepsThatAlwaysRun(t *testing.T) {
	tr := newTrial(t, `
- {name: a, script: echo ready; sleep 4719}
- {name: b, script: "echo cleaning; while [ ! -e go ]; do sleep 0.01; done; echo cleaned", when: always}
`)
	results := tr.start(t.Context())
	tr.stdout.Await(t, "ready")
	tr.Stop(cancelled, patience)
	tr.stdout.Await(t, "cleaning")
	tr.Stop(cancelled, 0)
	require.NoError(t, os.WriteFile(filepath.Join(tr.place.WorkDir, "go"), nil, 0o600))
	require.Equal(t, []string{"a cancelled", "b success"}, statuses((<-results).Steps))
	require.Equal(t, "ready\ncleaning\ncleaned\n", tr.stdout.String())
}

func TestStepsThatAlwaysRunHaveALimit(t *testing.T) {
	tr := newTrial(t, `
- {name: a, script: echo ready; sleep 4719}
- {name: b, script: sleep 4719, when: always}
- {name: c, script: echo too late, when: always}
`, func(c *Config) { c.AlwaysLimit = 50 * time.Millisecond })
	results := tr.start(t.Context())
	tr.stdout.Await(t, "ready")
	tr.Stop(cancelled, patience)
	res := <-results
	require.Equal(t, Cancelled, res.Status)
	require.Equal(t, cancelled, res.Message)
	require.Equal(t, []string{"a cancelled", "b cancelled", "c skipped"}, statuses(res.Steps))
	require.Equal(
		t,
		`step "b": timeout: after the job was stopped, its last steps ran for longer than 50ms`,
		res.Steps[1].Message,
	)
}

func TestStopBeforeTheFirstStepSkipsAll(t *testing.T) {
	tr := newTrial(t, "- {name: a, script: echo a}\n- {name: b, script: echo b, when: always}\n")
	tr.Stop(cancelled, 0)
	res := tr.run()
	require.Equal(t, Cancelled, res.Status)
	require.Equal(t, []string{"a skipped", "b success"}, statuses(res.Steps))
}

// Symptom: a job was checked to the end before it was stopped, which took minutes for one with many calls.
func TestStopEndsTheCheckOfTheSteps(t *testing.T) {
	for _, stop := range []func(*trial, context.CancelFunc){
		func(tr *trial, _ context.CancelFunc) { tr.Stop(cancelled, 0) },
		func(_ *trial, cancel context.CancelFunc) { cancel() },
	} {
		tr := newTrial(t, "- {name: a, step: ./wrong}\n").files(map[string]string{"wrong/step.yml": "x: y\n"})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stop(tr, cancel)
		res := <-tr.start(ctx)
		require.Equal(t, Cancelled, res.Status)
		require.Equal(t, []string{"a skipped"}, statuses(res.Steps))
	}
}

func TestStopAfterTheLastStepChangesNothing(t *testing.T) {
	tr := newTrial(t, "- {name: a, script: echo a}\n")
	require.Equal(t, Success, tr.run().Status)
	tr.Stop(cancelled, 0)
}

func TestEndOfTheContextKillsAtOnce(t *testing.T) {
	tr := newTrial(t, `
- {name: a, script: "trap '' TERM; echo ready; sleep 4720; sleep 4720"}
- {name: b, script: echo not-run, when: always}
`)
	ctx, cancel := context.WithCancelCause(t.Context())
	results := tr.start(ctx)
	tr.stdout.Await(t, "ready")
	cancel(errors.New("the job was killed"))
	res := <-results
	require.Equal(t, Cancelled, res.Status)
	require.Equal(t, "the job was killed", res.Message)
	require.Equal(t, []string{"a cancelled", "b skipped"}, statuses(res.Steps))
	require.Equal(t, "ready\n", tr.stdout.String())
}

func TestTimeoutFailsTheJob(t *testing.T) {
	tr := newTrial(t, `
- {name: a, script: "trap 'echo cleanup; exit 0' TERM; sleep 4721 & wait"}
- {name: b, script: echo not-run}
- {name: c, script: echo always, when: always}
`, func(c *Config) { c.Timeout = 2 * time.Second })
	res := tr.run()
	require.Equal(t, Failure, res.Status)
	require.True(t, res.TimedOut)
	require.Zero(t, res.ExitCode)
	require.Equal(t, "timeout: the job ran for longer than 2s", res.Message)
	require.Equal(t, []string{"a failure", "b skipped", "c success"}, statuses(res.Steps))
	require.Equal(t, "always\n", tr.stdout.String()[len(tr.stdout.String())-len("always\n"):])
}

func TestEventsCostNothingUnlessTheyAreAskedFor(t *testing.T) {
	r, res := &Runner{}, &StepResult{}
	refs := []expr.Reference{{Path: []string{"vars", "A"}}}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		r.tellReads(refs)
		r.tell(func(e Events) { e.ConditionEvaluated(res, true) })
		r.tell(func(e Events) { e.StepEnded(res) })
	}))
}
