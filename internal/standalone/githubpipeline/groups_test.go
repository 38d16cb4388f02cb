package githubpipeline_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/standalone/whole"
)

// beside runs a workflow and, once a job of it has printed "ready", other runs of the same project, one after another.
// Each begins when the one before waits or runs. It returns the reports, that of the first run last.
func (tr *trial) beside(text string, others ...string) (reports []*whole.Report, all []*trial) {
	tr.t.Helper()
	tr.cfg.StateDir, tr.cfg.Name = filepath.Join(tr.t.TempDir(), "p"), "ci.yml"
	reports = make([]*whole.Report, len(others)+1)
	var rest sync.WaitGroup
	var once sync.Once
	start := func() {
		for i, other := range others {
			o := newTrial(tr.t)
			o.cfg.StateDir, o.cfg.Name = tr.cfg.StateDir, fmt.Sprint(i)
			all = append(all, o)
			began := make(chan struct{})
			say, begin := o.cfg.Say, sync.OnceFunc(func() { close(began) })
			o.cfg.Say = func(line string) {
				if say(line); strings.Contains(line, "waits for") {
					begin()
				}
			}
			o.onLine = func(string) { begin() }
			rest.Go(func() {
				defer begin()
				reports[i] = o.run(tr.t.Context(), other)
			})
			<-began
		}
	}
	tr.onLine = func(line string) {
		if strings.Contains(line, "ready") {
			once.Do(func() { rest.Go(start) })
		}
	}
	reports[len(others)] = tr.run(tr.t.Context(), text)
	rest.Wait()
	return reports, all
}

// As on GitHub, one run of a workflow's group runs and one waits. A newer one replaces the one that waits, which then
// runs nothing, and with cancel-in-progress the one that runs, whose always() still holds.
func TestRunsOfAConcurrencyGroup(t *testing.T) {
	file := func(cancels bool, run string) string {
		return fmt.Sprintf(`
on: push
concurrency: {group: "${{ github.event_name }}-G", cancel-in-progress: %v}
jobs:
  a: {steps: [{run: %q}]}
  b: {needs: a, if: always(), steps: [{run: 'echo said ${{ needs.a.result }}'}]}
`, cancels, run)
	}
	gate := filepath.Join(t.TempDir(), "go")
	open, wait := "touch "+gate, "echo ready; until test -e "+gate+"; do sleep 0.01; done"
	const replaced = "a cancelled (a newer run of its concurrency group took its place), " +
		"b cancelled (a newer run of its concurrency group took its place)"

	tr := newTrial(t)
	reports, others := tr.beside(file(false, "echo ready; sleep 600"), file(false, open), file(true, open))
	require.Equal(t, replaced, told(reports[0]))
	require.Equal(t, []string{`waits for the concurrency group "push-g", which another run or job on this machine has`},
		others[0].said)
	require.Equal(t, "a success, b success", told(reports[1]))
	require.Equal(t, "a cancelled (a newer run of its concurrency group took its place), b success", told(reports[2]))
	require.Equal(t, "cancelled", tr.lines("b"))
	for _, r := range []*whole.Report{reports[0], reports[2]} {
		require.Equal(t, []any{whole.Cancelled, 125, "a newer run of its concurrency group took its place"},
			[]any{r.Status, r.ExitCode, r.Why})
	}

	tr = newTrial(t)
	apart := strings.Replace(file(true, open), "github.event_name", "github.job", 1) // another group: it opens the gate
	reports, _ = tr.beside(file(false, wait), file(false, "echo said second"), apart)
	require.Equal(t, "a success, b success", told(reports[0]))
	require.Equal(t, "a success, b success", told(reports[1]))
	require.Equal(t, "a success, b success", told(reports[2]))
}

// The group of a job holds for all runs of the project on this machine.
func TestJobsOfOneGroupInSeveralRuns(t *testing.T) {
	text := `
on: push
jobs:
  a: {concurrency: {group: prod, cancel-in-progress: true}, steps: [{run: %q}]}
  b: {needs: a, if: always(), steps: [{run: 'echo said ${{ needs.a.result }}'}]}
`
	tr := newTrial(t)
	reports, _ := tr.beside(fmt.Sprintf(text, "echo ready; sleep 600"), fmt.Sprintf(text, "echo ran"))
	require.Equal(t, "a success, b success", told(reports[0]))
	require.Equal(t, "a cancelled (a newer job of its concurrency group took its place), b success", told(reports[1]))
	require.Equal(t, []any{whole.Cancelled, 125, ""}, []any{reports[1].Status, reports[1].ExitCode, reports[1].Why})
}

// On GitHub, too, such a job is cancelled.
func TestAJobInTheGroupOfItsOwnRunDoesNotWaitForEver(t *testing.T) {
	report := newTrial(t).run(t.Context(), `
on: push
concurrency: deploy
jobs:
  a: {concurrency: Deploy, steps: [{run: 'true'}]}
  b: {concurrency: other, steps: [{run: 'true'}]}
`)
	require.Equal(t, "a cancelled (its concurrency group is that of the workflow or job that it belongs to, for which it "+
		"would wait without end), b success", told(report))
	require.Equal(t, []any{whole.Cancelled, 2}, []any{report.Status, report.ExitCode})
}

// A run that is ended while it waits for its group runs nothing.
func TestARunThatWaitsForItsGroupCanBeEnded(t *testing.T) {
	text := "on: push\nconcurrency: g\njobs: {a: {steps: [{run: 'echo ready; sleep 600'}]}}\n"
	first := newTrial(t)
	first.cfg.StateDir = filepath.Join(t.TempDir(), "p")
	ctx, end := context.WithCancel(t.Context())
	first.onLine = func(line string) {
		if !strings.Contains(line, "ready") {
			return
		}
		defer end()
		second := newTrial(t)
		second.cfg.StateDir = first.cfg.StateDir
		waits, stop := context.WithCancel(t.Context())
		second.cfg.Say = func(string) { stop() }
		p, err := second.read(text)
		require.NoError(t, err)
		report, err := whole.Run(waits, t.Context(), p, second.cfg)
		require.NoError(t, err)
		require.Equal(t, "a cancelled (cancelled)", told(report))
		require.Equal(t, []any{whole.Cancelled, 0}, []any{report.Status, report.ExitCode})
	}
	require.Equal(t, "a cancelled (cancelled)", told(first.run(ctx, text)))
}

// A manager has groups of its own. Each job and call enters its group once, and one that was cancelled before does not
// run.
func TestGroupsOfTheCallerTakeThePlaceOfThoseOfThisMachine(t *testing.T) {
	tr := newTrial(t)
	var mu sync.Mutex
	var entered []string
	held := make(chan struct{}, 1)
	tr.cfg.Enter = func(ctx context.Context, m whole.Member, _ func(string)) (context.Context, func(), error) {
		if m.Group == "none" {
			return ctx, nil, whole.ErrCancelled
		}
		if m.Job != "" {
			held <- struct{}{}
		}
		mu.Lock()
		defer mu.Unlock()
		entered = append(entered, fmt.Sprint(m.Group, " ", m.Job, " ", m.Cancels, " ", m.Keeps))
		return ctx, func() {
			if m.Job != "" {
				<-held
			}
		}, nil
	}
	report := tr.run(t.Context(), `
on: push
concurrency: Run
jobs:
  a: {concurrency: {group: G, cancel-in-progress: true}, steps: [{run: "true"}]}
  b: {strategy: {matrix: {n: [1, 2, 3]}}, if: always(), concurrency: g, steps: [{run: "true"}]}
  c: {concurrency: none, steps: [{run: "true"}]}
`)
	require.Equal(t, "a success, b (1) success, b (2) success, b (3) success, c cancelled (cancelled)", told(report))
	require.ElementsMatch(t, []string{
		"run  false false", "g a true false", "g b (1) false true", "g b (2) false true", "g b (3) false true",
	}, entered)
}
