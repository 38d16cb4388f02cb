package manager_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/gitlabci"
	"github.com/stepmux/stepmux/internal/standalone/managed"
)

// workflowOf returns the request for a workflow of the project r.
func workflowOf(t *testing.T, text string) *pb.SubmitPipelineRequest {
	t.Helper()
	source, _, _, err := managed.Source(standalone.Source{
		Name: "w.yml", Format: standalone.GitHub, WorkDir: t.TempDir(), Elsewhere: true, Text: []byte(text),
	})
	require.NoError(t, err)
	return &pb.SubmitPipelineRequest{Source: source, Repository: "r"}
}

func (r *running) cancelPipeline(id string) {
	r.t.Helper()
	_, err := r.Cancel(r.t.Context(), &pb.CancelRequest{Id: id})
	require.NoError(r.t, err)
}

func (r *running) retryPipeline(id string) {
	r.t.Helper()
	_, err := r.RetryPipeline(r.t.Context(), &pb.RetryPipelineRequest{Id: id})
	require.NoError(r.t, err)
}

// awaitNote waits for a line about the jobs of a pipeline.
func (r *running) awaitNote(id, text string) {
	r.t.Helper()
	r.awaitPipeline(id, func(p *pb.Pipeline) bool { return strings.Contains(strings.Join(p.GetNotes(), "\n"), text) })
}

const (
	newerRun = "a newer run of its concurrency group took its place"
	newerJob = "a newer job of its concurrency group took its place"
)

// As on GitHub, one run of a workflow's group runs and one waits, in all pipelines of the project, also after the
// manager has ended. A newer one takes the place of the one that waits, which then runs nothing.
func TestAWorkflowWaitsForItsConcurrencyGroup(t *testing.T) {
	t.Parallel()
	f := withPipelines(newFleet(t))
	m := f.start(t)
	wait, open := gate(t)
	line, times := ran(t)
	text := "on: push\nconcurrency: g\njobs:\n  a: {steps: [{run: %q}]}\n" +
		"  b: {if: always(), needs: a, steps: [{run: %q}]}\n"
	submit := func(name string) string {
		return m.submitPipeline(workflowOf(t, fmt.Sprintf(text, line(name)+"; "+wait, line(name+"-b"))))
	}
	first := submit("first")
	eventually(t, func() bool { return times()["first"] == 1 })
	second := submit("second")
	m.awaitNote(second, `waits for the concurrency group "g", which the pipeline `+first+" has")
	m.stop()
	m = f.start(t)
	third := submit("third")
	p := m.restOf(second)
	require.Equal(t, "a cancelled ("+newerRun+"), b cancelled ("+newerRun+")", jobsOf(p))
	require.Equal(t, []any{"cancelled", int32(125)}, []any{p.GetStatus(), p.GetExitCode()})
	m.stop()
	m = f.start(t)
	open()
	require.Equal(t, "success", m.restOf(first).GetStatus())
	require.Equal(t, "success", m.restOf(third).GetStatus())
	require.Equal(t, map[string]int{"first": 1, "first-b": 1, "third": 1, "third-b": 1}, times())

	m.retryPipeline(second)
	require.Equal(t, "success", m.restOf(second).GetStatus())
	require.Equal(t, 1, times()["second"])
}

// With cancel-in-progress a newer run cancels the one that runs. Of that one the jobs run whose if still holds, and the
// newer one begins after them.
func TestANewerRunCancelsTheOneInProgress(t *testing.T) {
	t.Parallel()
	f := withPipelines(newFleet(t))
	m := f.start(t)
	wait, open := gate(t)
	line, times := ran(t)
	text := `
on: push
concurrency: {group: g, cancel-in-progress: true}
jobs:
  a: {steps: [{run: %q}]}
  b: {needs: a, steps: [{run: %q}]}
  c: {needs: a, if: always(), steps: [{run: %q}]}
  d: {needs: [a, c], if: "always() && needs.a.result == 'cancelled'", steps: [{run: %q}]}
`
	first := m.submitPipeline(workflowOf(t, fmt.Sprintf(text, line("a")+"; sleep 600", line("b"), line("c")+"; "+wait,
		line("d"))))
	eventually(t, func() bool { return times()["a"] == 1 })
	second := m.submitPipeline(workflowOf(t, fmt.Sprintf(text, line("second"), "true", "true", "false")))
	eventually(t, func() bool { return times()["c"] == 1 })
	m.stop() // in the job that goes on
	m = f.start(t)
	require.Zero(t, times()["second"])
	open()
	p := m.restOf(first)
	require.Equal(t, "a cancelled, b cancelled, c success, d success", plain(jobsOf(p)))
	require.Equal(t, []any{"cancelled", int32(125)}, []any{p.GetStatus(), p.GetExitCode()})
	require.Contains(t, p.GetNotes(), newerRun)
	p = m.restOf(second)
	require.Equal(t, "success", p.GetStatus(), jobsOf(p))
	require.Equal(t, map[string]int{"a": 1, "c": 1, "d": 1, "second": 1}, times())
}

// The group of a job holds for the jobs of all pipelines: one runs, one waits, and a newer one takes its place. With
// cancel-in-progress it ends the one that runs, and begins after the end of that.
func TestJobsOfAConcurrencyGroupInSeveralPipelines(t *testing.T) {
	t.Parallel()
	f := withPipelines(newFleet(t))
	m := f.start(t)
	line, times := ran(t)
	ended := filepath.Join(t.TempDir(), "ended")
	submit := func(name, script, cancels string) string {
		return m.submitPipeline(workflowOf(t, fmt.Sprintf(`
on: push
jobs:
  a: {concurrency: {group: G, cancel-in-progress: %s}, steps: [{run: %q}]}
  b: {needs: a, if: "always() && needs.a.result != 'success'", steps: [{run: %q}]}
`, cancels, line(name)+"; "+script, line(name+"-"+"${{ needs.a.result }}"))))
	}
	first := submit("first", "trap 'sleep 0.5; touch "+ended+"; exit 1' INT TERM; sleep 600 & wait", "false")
	eventually(t, func() bool { return times()["first"] == 1 })
	second := submit("second", "true", "false")
	m.awaitNote(second, `a: waits for the concurrency group "g", which the pipeline `+first+" has")
	third := submit("third", "test -e "+ended, "true")
	p := m.restOf(second)
	require.Equal(t, "a cancelled ("+newerJob+"), b success", jobsOf(p))
	require.Equal(t, []any{"cancelled", int32(125)}, []any{p.GetStatus(), p.GetExitCode()})
	require.Equal(t, "a cancelled ("+newerJob+"), b success", jobsOf(m.restOf(first)))
	require.Equal(t, "success", m.restOf(third).GetStatus(), "it began after the end of the first one")
	require.Equal(t, map[string]int{
		"first": 1, "first-cancelled": 1, "second-cancelled": 1, "third": 1,
	}, times())
}

// A called workflow is in the group of its job, and leaves it at its end. A pipeline that is cancelled while its job
// waits leaves the group to others.
func TestACallInAConcurrencyGroup(t *testing.T) {
	t.Parallel()
	f := withPipelines(newFleet(t))
	m := f.start(t)
	wait, open := gate(t)
	line, times := ran(t)
	submit := func(name, script string) string {
		dir := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(dir, ".github/workflows"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, ".github/workflows/c.yml"), []byte(fmt.Sprintf(
			"on: {workflow_call: }\njobs:\n  x: {steps: [{run: %q}]}\n  y: {needs: x, steps: [{run: %q}]}\n",
			line(name)+"; "+script, line(name+"-y"))), 0o600))
		source, _, _, err := managed.Source(standalone.Source{
			Name: "w.yml", Format: standalone.GitHub, WorkDir: dir, Elsewhere: true,
			Text: []byte("on: push\njobs: {c: {uses: ./.github/workflows/c.yml, concurrency: g}}\n"),
		})
		require.NoError(t, err)
		return m.submitPipeline(&pb.SubmitPipelineRequest{Source: source, Repository: "r"})
	}
	first := submit("first", wait)
	eventually(t, func() bool { return times()["first"] == 1 })
	second := submit("second", "true")
	m.awaitNote(second, "c: waits for the concurrency group")
	m.cancelPipeline(second)
	require.Equal(t, "cancelled", m.restOf(second).GetStatus())
	third := submit("third", "true")
	m.awaitNote(third, "c: waits for the concurrency group")
	m.stop()
	m = f.start(t)
	open()
	require.Equal(t, "success", m.restOf(first).GetStatus())
	require.Equal(t, "success", m.restOf(third).GetStatus())
	m.retryPipeline(second)
	p := m.restOf(second)
	require.Equal(t, "success", p.GetStatus(), jobsOf(p))
	require.Equal(t, map[string]int{
		"first": 1, "first-y": 1, "second": 1, "second-y": 1, "third": 1, "third-y": 1,
	}, times())
	for _, id := range []string{first, second, third} {
		m.m.ExpirePipeline(t, id)
	}
	m.m.ForgetPipelines(t)
	require.Zero(t, m.m.GroupsAndTurns(t))
}

// After a cancel no job of a workflow starts but those whose if still holds, also in the next manager. A second cancel
// ends those, too. Retry runs what was cancelled.
func TestAWorkflowIsCancelledAndRetried(t *testing.T) {
	t.Parallel()
	f := withPipelines(newFleet(t))
	m := f.start(t)
	line, times := ran(t)
	flag := filepath.Join(t.TempDir(), "flag")
	unless := "; test -e " + flag + " || sleep 600"
	id := m.submitPipeline(workflowOf(t, fmt.Sprintf(`
on: push
jobs:
  a: {outputs: {o: "7"}, steps: [{run: %q}]}
  b: {needs: a, steps: [{run: %q}]}
  c: {needs: b, steps: [{run: %q}]}
  d: {needs: [a, b], if: always(), steps: [{run: %q}]}
  e: {needs: b, if: failure(), steps: [{run: %q}]}
  f: {needs: d, if: cancelled(), steps: [{run: %q}]}
`, line("a"), line("b")+unless, line("c"), line("d-${{ needs.a.outputs.o }}-${{ needs.b.result }}")+unless, line("e"),
		line("f"))))
	eventually(t, func() bool { return times()["b"] == 1 })
	m.cancelPipeline(id)
	eventually(t, func() bool { return times()["d-7-cancelled"] == 1 })
	m.stop()
	m = f.start(t)
	p := m.awaitPipeline(id, func(p *pb.Pipeline) bool { return strings.Contains(jobsOf(p), "d running") })
	require.Equal(t, pb.Pipeline_running, p.GetPhase())
	m.cancelPipeline(id)
	p = m.restOf(id)
	require.Equal(t, "a success, b cancelled, c cancelled, d cancelled, e cancelled, f cancelled", plain(jobsOf(p)))
	require.Equal(t, []any{"cancelled", int32(1)}, []any{p.GetStatus(), p.GetExitCode()})

	require.NoError(t, os.WriteFile(flag, nil, 0o600))
	m.retryPipeline(id)
	p = m.restOf(id)
	require.Equal(t, "a success, b success, c success, d success, e skipped, f skipped", plain(jobsOf(p)))
	require.Equal(t, "success", p.GetStatus())
	require.Equal(t, map[string]int{"a": 1, "b": 2, "c": 1, "d-7-cancelled": 1, "d-7-success": 1}, times())
}

// A retry that came between the end of a pipeline and the end of all that carried it out was taken for one that this
// had seen: the pipeline stayed queued until a manager started again.
func TestARetryRightAfterTheEndRuns(t *testing.T) {
	t.Parallel()
	m := withPipelines(newFleet(t)).start(t)
	id := m.submitPipeline(pipelineOf(t, "a: {script: ['false']}\n"))
	m.restOf(id)
	for range 20 {
		m.retryPipeline(id)
		m.restOf(id)
	}
}

// A newer pipeline of another commit ends an older one of its branch, as auto_cancel of the older one and interruptible
// say, also if the manager ends meanwhile.
func TestANewerPipelineEndsAnOlderOne(t *testing.T) {
	t.Parallel()
	const newer = "cancelled (a newer run of another commit made it redundant)"
	for name, tt := range map[string]struct{ text, branch, commit, want string }{
		"all": {
			"a: {interruptible: true, script: [%q, %q]}\n", "main", "2", "a cancelled (cancelled)",
		},
		"started": {
			"a: {script: [%q, %q]}\nb: {stage: deploy, interruptible: true, script: [':']}\n", "main", "2",
			"a success, b success",
		},
		"the jobs that are": {
			"workflow: {auto_cancel: {on_new_commit: interruptible}}\na: {script: [%q, %q]}\n" +
				"b: {interruptible: true, script: [sleep 600]}\nz: {interruptible: true, script: [':'], when: manual}\n" +
				"ok: {interruptible: true, stage: .pre, script: [':']}\n" +
				"c: {stage: deploy, needs: [a], script: [':']}\n" +
				"d: {stage: deploy, needs: [a], interruptible: true, script: [':']}\n",
			"main", "2", "a success, b " + newer + ", c success, d " + newer + ", ok success, z manual",
		},
		"nothing": {
			"workflow: {auto_cancel: {on_new_commit: none}}\na: {interruptible: true, script: [%q, %q]}\n", "main", "2",
			"a success",
		},
		"another branch":  {"a: {interruptible: true, script: [%q, %q]}\n", "topic", "2", "a success"},
		"the same commit": {"a: {interruptible: true, script: [%q, %q]}\n", "main", "1", "a success"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := withPipelines(newFleet(t))
			m := f.start(t)
			wait, open := gate(t)
			line, times := ran(t)
			of := func(branch, commit, text string) *pb.SubmitPipelineRequest {
				source, _, _, err := managed.Source(standalone.Source{
					Name: ".gitlab-ci.yml", Text: []byte(text), Format: standalone.GitLabCI, WorkDir: t.TempDir(), Elsewhere: true,
					Predefined: []gitlabci.Variable{
						{Name: "CI_COMMIT_REF_NAME", Value: branch}, {Name: "CI_COMMIT_SHA", Value: commit},
					},
				})
				require.NoError(t, err)
				return &pb.SubmitPipelineRequest{Source: source, Repository: "r"}
			}
			first := m.submitPipeline(of("main", "1", fmt.Sprintf(tt.text, line("a"), wait)))
			eventually(t, func() bool { return times()["a"] == 1 })
			m.awaitPipeline(first, func(p *pb.Pipeline) bool {
				return !strings.Contains(tt.text, "sleep 600") || strings.Contains(jobsOf(p), "b running")
			})
			second := m.submitPipeline(of(tt.branch, tt.commit, "s: {script: [':']}\n"))
			m.stop()
			m = f.start(t)
			open()
			p := m.restOf(first)
			require.Equal(t, tt.want, jobsOf(p))
			if name == "all" {
				require.Equal(t, []any{"cancelled", int32(125)}, []any{p.GetStatus(), p.GetExitCode()})
			}
			require.Equal(t, "success", m.restOf(second).GetStatus())
		})
	}
}

// Symptom: nothing said why a job of a pipeline that runs did not begin.
func TestAPipelineThatRunsSaysWhyAJobWaits(t *testing.T) {
	t.Parallel()
	f := withPipelines(newFleet(t))
	m := f.start(t)
	wait, open := gate(t)
	req := pipelineOf(t, fmt.Sprintf(`
a: {parallel: %d, script: [%q]}
b: {script: [':'], resource_group: g, stage: .pre}
`, 2*f.capacity+1, wait))
	req.Repository = "r"
	other := pipelineOf(t, fmt.Sprintf("o: {script: [%q], resource_group: g}\n", wait))
	other.Repository = "r"
	first := m.submitPipeline(other)
	m.awaitPipeline(first, func(p *pb.Pipeline) bool { return strings.Contains(jobsOf(p), "o running") })
	id := m.submitPipeline(req)
	has := func(texts ...string) func(p *pb.Pipeline) bool {
		return func(p *pb.Pipeline) bool {
			return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(jobsOf(p), text) })
		}
	}
	m.awaitPipeline(id, has("b ready (waits for the resource group g, which the build "+first+"-"))
	m.cancelPipeline(first)
	m.awaitPipeline(id, has("ready (waits for a slot)", "ready (waits for other jobs of the pipeline (see --jobs))"))
	open()
	p := m.restOf(id)
	require.Equal(t, "success", p.GetStatus())
	require.NotContains(t, jobsOf(p), "waits")
}

// Symptom: the files of a job that failed were kept, although artifacts:when is on_success.
func TestArtifactsAreKeptAfterTheOutcomeThatTheyName(t *testing.T) {
	t.Parallel()
	m := withPipelines(newFleet(t)).start(t)
	p := m.restOf(m.submitPipeline(pipelineOf(t, `
variables: {CODE: 3}
good: {extends: .a, variables: {CODE: 0}}
bad: {extends: .a}
report: {extends: .a, artifacts: {paths: [f], reports: {dotenv: v.env}}}
failure: {extends: .a, artifacts: {paths: [f], when: on_failure}}
always: {extends: .a, artifacts: {paths: [f], when: always}}
.a:
  {script: [echo x > f, echo V=7 > v.env, exit $CODE], allow_failure: true, stage: build, artifacts: {paths: [f]}}
sees: {stage: test, allow_failure: false, script: ['echo sees $V'], needs: [report]}
`)))
	for job, name := range map[string]string{"good": "f", "bad": "", "report": "v.env", "failure": "f", "always": "f"} {
		at := slices.IndexFunc(p.GetJobs(), func(j *pb.PipelineJob) bool { return j.GetName() == job })
		require.Equal(t, name, strings.Join(m.archived(p.GetJobs()[at].GetBuild()), " "), job)
	}
	require.Equal(t, "sees 7\n", said(m.logOf(p, "sees")))
}

// Symptom: a cancel that came while a manager took a pipeline over found jobs that had succeeded, and were not known
// again yet: they were cancelled, and ran again by a retry.
func TestAPipelineIsCancelledWhileTheNextManagerTakesItOver(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]func(t *testing.T, a, b string) *pb.SubmitPipelineRequest{
		"gitlab": func(t *testing.T, a, b string) *pb.SubmitPipelineRequest {
			t.Helper()
			return pipelineOf(t, fmt.Sprintf(
				"a: {stage: build, parallel: 3, script: [%q]}\nb: {stage: test, script: [%q]}\n"+
					"c: {stage: deploy, script: [':']}\n", a, b))
		},
		"github": func(t *testing.T, a, b string) *pb.SubmitPipelineRequest {
			t.Helper()
			return workflowOf(t, fmt.Sprintf("on: push\njobs:\n  a: {strategy: {matrix: {n: [1, 2, 3]}}, steps: [{run: %q}]}\n"+
				"  b: {needs: a, steps: [{run: %q}]}\n  c: {needs: b, steps: [{run: ':'}]}\n", a, b))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := withPipelines(newFleet(t))
			m := f.start(t)
			line, times := ran(t)
			id := m.submitPipeline(of(t, line("a"), line("b")+"; sleep 600"))
			eventually(t, func() bool { return times()["b"] == 1 })
			m.stop()
			m = f.start(t)
			m.cancelPipeline(id)
			p := m.restOf(id)
			require.Equal(t, "cancelled", p.GetStatus())
			for _, j := range p.GetJobs() {
				require.Equal(t, strings.HasPrefix(j.GetName(), "a"), j.GetStatus() == "success", jobsOf(p))
			}
			require.Equal(t, map[string]int{"a": 3, "b": 1}, times())
		})
	}
}
