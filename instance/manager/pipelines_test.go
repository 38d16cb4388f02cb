package manager_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/instance/manager"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/managed"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// withPipelines lets the managers of a fleet run pipelines.
func withPipelines(f *fleet) *fleet {
	f.change = func(cfg *manager.Config) { cfg.Pipelines = managed.Pipelines{} }
	return f
}

// pipelineOf returns the request for the pipeline of a .gitlab-ci.yml, which is alone in its directory.
func pipelineOf(t *testing.T, text string) *pb.SubmitPipelineRequest {
	t.Helper()
	source, _, _, err := managed.Source(standalone.Source{
		Name: ".gitlab-ci.yml", Text: []byte(text), Format: standalone.GitLabCI, WorkDir: t.TempDir(), Elsewhere: true,
	})
	require.NoError(t, err)
	return &pb.SubmitPipelineRequest{Source: source}
}

func (r *running) submitPipeline(req *pb.SubmitPipelineRequest) string {
	r.t.Helper()
	resp, err := r.SubmitPipeline(r.t.Context(), req)
	require.NoError(r.t, err)
	return resp.GetId()
}

// awaitPipeline follows a pipeline until enough is true, and returns it as it is then.
func (r *running) awaitPipeline(id string, enough func(*pb.Pipeline) bool) (last *pb.Pipeline) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), sshtest.Bound)
	defer cancel()
	stream, err := r.GetPipeline(ctx, &pb.GetPipelineRequest{Id: id, Follow: true})
	require.NoError(r.t, err)
	for {
		p, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			require.True(r.t, enough(last), "the pipeline stands like this: %v", last)
			return last
		}
		require.NoError(r.t, err, "the pipeline stands like this: %v", last)
		if last = p; enough(p) {
			return p
		}
	}
}

func (r *running) restOf(id string) *pb.Pipeline {
	r.t.Helper()
	return r.awaitPipeline(id, func(p *pb.Pipeline) bool {
		return p.GetPhase() == pb.Pipeline_ended || p.GetPhase() == pb.Pipeline_blocked
	})
}

func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	require.Eventually(t, holds, sshtest.Bound, 10*time.Millisecond)
}

// jobsOf describes the jobs of a pipeline.
func jobsOf(p *pb.Pipeline) string {
	var all []string
	for _, j := range p.GetJobs() {
		text := j.GetName() + " " + j.GetStatus()
		if j.GetWhy() != "" {
			text += " (" + j.GetWhy() + ")"
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// ran returns a line of a script that appends a line to a file, and a function that returns how often it ran, by name.
func ran(t *testing.T) (line func(name string) string, times func() map[string]int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ran")
	line = func(name string) string { return fmt.Sprintf("echo %s >> %s", name, file) }
	return line, func() map[string]int {
		text, err := os.ReadFile(file)
		if !errors.Is(err, os.ErrNotExist) {
			require.NoError(t, err)
		}
		counts := map[string]int{}
		for _, name := range strings.Fields(string(text)) {
			counts[name]++
		}
		return counts
	}
}

func (r *running) logOf(p *pb.Pipeline, job string) string {
	r.t.Helper()
	for _, j := range p.GetJobs() {
		if j.GetName() == job {
			text, _ := r.wait(j.GetBuild(), 0)
			return text
		}
	}
	require.Fail(r.t, "there is no such job", job)
	return ""
}

func TestAPipelineGoesThroughTheQueue(t *testing.T) {
	t.Parallel()
	m := withPipelines(newFleet(t)).start(t)
	req := pipelineOf(t, `
stages: [build, test, deploy]
workflow: {name: "deploys $SECRET"}
variables: {TOKEN: "$SECRET"}
a: {stage: build, script: [echo X=5 > v.env, mkdir d, echo one > d/f, echo skip > d/g], artifacts: {paths: [d],
    exclude: [d/g], reports: {dotenv: v.env}}}
b: {stage: test, script: ['echo said $X $(cat d/f) $(ls d) $TOKEN']}
c: {stage: test, script: [exit 4], allow_failure: true}
d: {stage: test, script: [exit 1], when: on_failure}
again: {stage: test, script: ['echo attempt', 'exit 9'], retry: 1, allow_failure: true, needs: []}
m: {stage: deploy, script: ['echo deploys $X'], when: manual, allow_failure: false}
last: {stage: .post, script: ["true"]}
`)
	req.Options = &stepmuxv1.Job{Variables: []*stepmuxv1.Variable{{Key: "SECRET", Value: "a-hidden-value", Masked: true}}}
	id := m.submitPipeline(req)
	p := m.restOf(id)
	require.Equal(t, `a success, again warning, b success, c warning, d skipped (nothing before it failed), `+
		`last blocked (blocked by "m"), m manual`, jobsOf(p))
	require.Equal(t, pb.Pipeline_blocked, p.GetPhase())
	require.EqualValues(t, 2, p.GetCounts()["success"])
	require.Equal(t, "said 5 one f [MASKED]\n", said(m.logOf(p, "b")))
	require.NotContains(t, p.String(), "a-hidden-value")
	require.Equal(t, "deploys [MASKED]", p.GetName())

	_, err := m.PlayPipeline(t.Context(), &pb.PlayPipelineRequest{Id: id, Job: "b"})
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.ErrorContains(t, err, `the job "b" does not wait to be started: its status is success`)
	_, err = m.PlayPipeline(t.Context(), &pb.PlayPipelineRequest{Id: id, Job: "none"})
	require.Equal(t, codes.NotFound, status.Code(err))
	_, err = m.PlayPipeline(t.Context(), &pb.PlayPipelineRequest{Id: id, Job: "m"})
	require.NoError(t, err)
	p = m.restOf(id)
	require.Equal(t, "success", p.GetStatus())
	require.Equal(t, "deploys 5\n", said(m.logOf(p, "m")))
	require.Contains(t, jobsOf(p), "last success")

	list, err := m.ListPipelines(t.Context(), &pb.ListPipelinesRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetPipelines(), 1)
	require.Equal(t, id, list.GetPipelines()[0].GetId())
	audit, err := m.Audit(t.Context(), &pb.AuditRequest{})
	require.NoError(t, err)
	require.Equal(t, "play", audit.GetEntries()[0].GetAction())
	require.Equal(t, id+"/m", audit.GetEntries()[0].GetSubject())
	builds, err := m.List(t.Context(), &pb.ListRequest{})
	require.NoError(t, err)
	require.Len(t, builds.GetBuilds(), 7, "with two attempts of one job")
	require.Equal(t, id, builds.GetBuilds()[0].GetPipeline())
	require.Zero(t, builds.GetQueued())
}

// said returns the lines of a log that are no commands.
func said(log string) string {
	var all strings.Builder
	for line := range strings.Lines(log) {
		if !strings.HasPrefix(line, "$ ") {
			all.WriteString(line)
		}
	}
	return all.String()
}

// A manager that is stopped leaves its pipelines to the next one: each job runs once.
func TestAPipelineOutlivesItsManager(t *testing.T) {
	t.Parallel()
	f := withPipelines(newFleet(t))
	m := f.start(t)
	wait, open := gate(t)
	line, times := ran(t)
	id := m.submitPipeline(pipelineOf(t, fmt.Sprintf(`
stages: [one, two, three]
a: {stage: one, script: [%q, echo V=7 > v.env, echo f > f], artifacts: {paths: [f], reports: {dotenv: v.env}}}
b: {stage: two, script: [%q, %q]}
c: {stage: two, script: [%q]}
m: {stage: two, script: [%q], when: manual, allow_failure: false}
d: {stage: three, script: [%q, 'echo $V $(cat f)']}
`, line("a"), line("b"), wait, line("c"), line("m"), line("d"))))
	eventually(t, func() bool { return times()["b"] == 1 && times()["c"] == 1 })
	m.stop()
	m = f.start(t)
	_, err := m.PlayPipeline(t.Context(), &pb.PlayPipelineRequest{Id: id, Job: "m"})
	require.NoError(t, err)
	eventually(t, func() bool { return times()["m"] == 1 })
	m.stop()
	open()
	m = f.start(t)
	p := m.restOf(id)
	require.Equal(t, "a success, b success, c success, d success, m success", jobsOf(p))
	require.Equal(t, map[string]int{"a": 1, "b": 1, "c": 1, "m": 1, "d": 1}, times())
	require.Equal(t, "7 f\n", said(m.logOf(p, "d")))
	eventually(t, func() bool { return m.m.Requests(t) == 0 })
}

// Cancel ends the builds of a pipeline, and no other begins. Retry runs the jobs that were cancelled or failed once
// more.
func TestAPipelineIsCancelledAndRetried(t *testing.T) {
	t.Parallel()
	f := withPipelines(newFleet(t))
	m := f.start(t)
	line, times := ran(t)
	flag := filepath.Join(t.TempDir(), "flag")
	id := m.submitPipeline(pipelineOf(t, fmt.Sprintf(`
stages: [one, two, three]
a: {stage: one, script: [%q, echo f > f], artifacts: {paths: [f]}}
b: {stage: two, script: [%q, 'test -e %s || sleep 600']}
m: {stage: two, script: [%q], when: manual, allow_failure: false}
c: {stage: three, script: [%q, cat f]}
`, line("a"), line("b"), flag, line("m"), line("c"))))
	eventually(t, func() bool { return times()["b"] == 1 })
	_, err := m.RetryPipeline(t.Context(), &pb.RetryPipelineRequest{Id: id})
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.ErrorContains(t, err, "the pipeline is running")
	_, err = m.Cancel(t.Context(), &pb.CancelRequest{Id: id})
	require.NoError(t, err)
	p := m.restOf(id)
	require.Equal(t, pb.Pipeline_ended, p.GetPhase())
	require.Equal(t, "cancelled", p.GetStatus())
	require.Equal(t, "a success, b cancelled, c cancelled, m cancelled", plain(jobsOf(p)))
	_, err = m.PlayPipeline(t.Context(), &pb.PlayPipelineRequest{Id: id, Job: "m"})
	require.ErrorContains(t, err, "the pipeline was cancelled; stepmux retry begins it again")

	require.NoError(t, os.WriteFile(flag, nil, 0o600))
	_, err = m.RetryPipeline(t.Context(), &pb.RetryPipelineRequest{Id: id})
	require.NoError(t, err)
	p = m.restOf(id)
	require.Equal(t, pb.Pipeline_blocked, p.GetPhase())
	_, err = m.PlayPipeline(t.Context(), &pb.PlayPipelineRequest{Id: id, Job: "m"})
	require.NoError(t, err)
	p = m.restOf(id)
	require.Equal(t, "success", p.GetStatus(), jobsOf(p))
	require.Equal(t, map[string]int{"a": 1, "b": 2, "m": 1, "c": 1}, times())
	require.Equal(t, "f\n", said(m.logOf(p, "c")))
	_, err = m.RetryPipeline(t.Context(), &pb.RetryPipelineRequest{Id: id})
	require.ErrorContains(t, err, "there is nothing to run again")
	for i, action := range []string{"play", "retry", "cancel"} {
		audit, err := m.Audit(t.Context(), &pb.AuditRequest{})
		require.NoError(t, err)
		require.Equal(t, action, audit.GetEntries()[i].GetAction())
	}
}

// plain leaves the reasons out of a description of jobs.
func plain(jobs string) string {
	var all []string
	for _, one := range strings.Split(jobs, ", ") {
		name, _, _ := strings.Cut(one, " (")
		all = append(all, name)
	}
	return strings.Join(all, ", ")
}

// A pipeline that was cancelled just before its manager ended is cancelled by the next one.
func TestAPipelineIsCancelledByTheNextManager(t *testing.T) {
	t.Parallel()
	f := withPipelines(newFleet(t))
	m := f.start(t)
	line, times := ran(t)
	req := pipelineOf(t, fmt.Sprintf(`
stages: [one, two]
a: {stage: one, script: [%q]}
b: {stage: one, script: [%q, sleep 600]}
c: {stage: two, script: [%q], when: always}
d: {stage: one, script: [%q], when: delayed, start_in: 1 hour}
`, line("a"), line("b"), line("c"), line("d")))
	req.Choice = &pb.PipelineChoice{WaitDelayed: true}
	id := m.submitPipeline(req)
	m.awaitPipeline(id, func(p *pb.Pipeline) bool { return strings.Contains(jobsOf(p), "a success") })
	eventually(t, func() bool { return times()["b"] == 1 })
	m.stop()
	f.change = nil // it carries no pipelines out
	m = f.start(t)
	_, err := m.Cancel(t.Context(), &pb.CancelRequest{Id: id})
	require.NoError(t, err)
	m.stop()
	m = withPipelines(f).start(t)
	p := m.restOf(id)
	require.Equal(t, "cancelled", p.GetStatus(), jobsOf(p))
	require.Equal(t, "a success, b cancelled, c skipped, d cancelled", plain(jobsOf(p)))
	require.Equal(t, map[string]int{"a": 1, "b": 1}, times())
}

func TestPipelinesThatAreRefused(t *testing.T) {
	t.Parallel()
	m := withPipelines(newFleet(t)).start(t)
	many := "x: {parallel: 200, script: [\":\"]}\n"
	for i := range 50 {
		many += fmt.Sprintf("y%d: {parallel: 200, script: [\":\"]}\n", i)
	}
	raw := func(text string) *pb.SubmitPipelineRequest {
		return &pb.SubmitPipelineRequest{Source: &pb.PipelineSource{
			Name: ".gitlab-ci.yml", Text: []byte(text), Format: "gitlab-ci", Directory: "p",
		}}
	}
	edited := func(edit func(*pb.SubmitPipelineRequest)) *pb.SubmitPipelineRequest {
		req := raw("a: {script: [\":\"]}")
		edit(req)
		return req
	}
	for name, test := range map[string]struct {
		req  *pb.SubmitPipelineRequest
		text string
	}{
		"cycle":   {raw("a: {script: [\":\"], needs: [b]}\nb: {script: [\":\"], needs: [a]}\n"), ".gitlab-ci.yml:"},
		"unknown": {raw("a:\n  script: [\":\"]\n  needs: [none]\n"), ".gitlab-ci.yml:3:11"},
		"many":    {raw(many), "10000"},
		"no YAML": {raw("a: ["), ".gitlab-ci.yml:2:1"},
		"include": {raw("include: {local: /other.yml}\na: {script: [\":\"]}"), "it was not sent along"},
		"format": {
			edited(func(r *pb.SubmitPipelineRequest) { r.Source.Format = "steps" }),
			"a manager runs the pipeline of a .gitlab-ci.yml",
		},
		"project": {edited(func(r *pb.SubmitPipelineRequest) {
			r.Project, r.ProjectBytes = strings.Repeat("0", 64), 1
		}), "the manager does not have the archive of the project"},
		"labels": {
			edited(func(r *pb.SubmitPipelineRequest) { r.Labels = map[string]string{"a": "b"} }), "no VM has the labels",
		},
		"key": {edited(func(r *pb.SubmitPipelineRequest) { r.Key = "a b" }), "the key of the request"},
		"choice": {edited(func(r *pb.SubmitPipelineRequest) {
			r.Choice = &pb.PipelineChoice{Skip: []string{"none"}}
		}), `the pipeline has no job "none"`},
		"list": {edited(func(r *pb.SubmitPipelineRequest) { r.Source.Listed = []byte("no gzip") }), "the list of the files"},
		"size": {edited(func(r *pb.SubmitPipelineRequest) {
			r.Source.Files = []*pb.SourceFile{{Path: "p", Data: make([]byte, 4<<20)}}
		}), "bytes, at most"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := m.SubmitPipeline(t.Context(), test.req)
			require.ErrorContains(t, err, test.text)
			require.NotEqual(t, codes.Internal, status.Code(err))
		})
	}
	list, err := m.ListPipelines(t.Context(), &pb.ListPipelinesRequest{})
	require.NoError(t, err)
	require.Empty(t, list.GetPipelines())
	for _, id := range []string{"p-000000000000", "", "1-2", strings.Repeat("p-", 1000)} {
		stream, err := m.GetPipeline(t.Context(), &pb.GetPipelineRequest{Id: id})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.Equal(t, codes.NotFound, status.Code(err), id)
	}
	_, err = m.Cancel(t.Context(), &pb.CancelRequest{Id: "p-000000000000"})
	require.Equal(t, codes.NotFound, status.Code(err))
	_, err = m.Submit(t.Context(), &pb.SubmitRequest{
		Job: &stepmuxv1.Job{Script: "true"}, Pipeline: &pb.PipelineBuild{Id: "p-000000000000"},
	})
	require.ErrorContains(t, err, "a manager alone queues the builds of its pipelines")

	m.m.FillPipelines(t)
	_, err = m.SubmitPipeline(t.Context(), raw("a: {script: [\":\"]}"))
	require.Equal(t, codes.ResourceExhausted, status.Code(err), err)
}

// The same key is the same pipeline. A pipeline of many jobs leaves room in the queue for other builds.
func TestAPipelineLeavesRoomForOtherBuilds(t *testing.T) {
	t.Parallel()
	f := withPipelines(newFleet(t))
	m := f.start(t)
	wait, open := gate(t)
	req := pipelineOf(t, fmt.Sprintf("a: {parallel: 20, script: [%q]}\n", wait))
	req.Key = "once"
	id := m.submitPipeline(req)
	req.Key = "once"
	require.Equal(t, id, m.submitPipeline(req))
	queued := func() int {
		list, err := m.List(t.Context(), &pb.ListRequest{})
		require.NoError(t, err)
		return len(list.GetBuilds())
	}
	eventually(t, func() bool { return queued() == 2*f.capacity })
	other := m.submit("echo other")
	open()
	_, b := m.wait(other, 0)
	require.True(t, b.GetStarted().AsTime().Before(m.restOf(id).GetEndedAt().AsTime()))
}

// Jobs that need an optional manual job are skipped as long as nobody starts it, also if the pipeline still runs then.
func TestJobsBehindAManualJobRunIfItIsStartedWhileOthersRun(t *testing.T) {
	t.Parallel()
	m := withPipelines(newFleet(t)).start(t)
	dir := t.TempDir()
	id := m.submitPipeline(pipelineOf(t, fmt.Sprintf(`
m: {when: manual, script: [echo m]}
n: {needs: [m], script: [echo n]}
s: {script: ['until [ -e %s/go ]; do sleep 0.1; done']}
`, dir)))
	until := func(texts ...string) {
		m.awaitPipeline(id, func(p *pb.Pipeline) bool {
			return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(jobsOf(p), text) })
		})
	}
	until("n skipped", "s running")
	_, err := m.PlayPipeline(t.Context(), &pb.PlayPipelineRequest{Id: id, Job: "m"})
	require.NoError(t, err)
	until("m success")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o600))
	p := m.restOf(id)
	require.Equal(t, "success", p.GetStatus())
	require.Equal(t, "n\n", said(m.logOf(p, "n")))
}

// A manager may end after it has kept that a pipeline is queued, and before it calls for a manager.
func TestAPipelineThatNobodyCallsForIsCarriedOut(t *testing.T) {
	t.Parallel()
	f := withPipelines(newFleet(t))
	m := f.start(t)
	id := m.submitPipeline(pipelineOf(t, "a: {script: [exit 3]}\n"))
	require.Equal(t, "failure", m.restOf(id).GetStatus())
	m.m.QueueWithoutACall(t, id)
	_, err := m.RetryPipeline(t.Context(), &pb.RetryPipelineRequest{Id: id})
	require.NoError(t, err)
	require.Equal(t, "failure", m.restOf(id).GetStatus())
	m.m.QueueWithoutACall(t, id)
	m.stop()
	require.Equal(t, "failure", f.start(t).restOf(id).GetStatus())
}

// The builds of a pipeline are kept as long as the pipeline, and the request is gone with it.
func TestTheBuildsOfAPipelineAreKeptAsLongAsIt(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.change = func(cfg *manager.Config) { cfg.Pipelines, cfg.Keep = managed.Pipelines{}, 2*time.Second }
	m := f.start(t)
	id := m.submitPipeline(pipelineOf(t, `
stages: [one, two]
a: {stage: one, script: [":"]}
b: {stage: two, script: [sleep 4]}
`))
	p := m.restOf(id)
	require.Equal(t, "success", p.GetStatus(), "the record of the first build is older than others are kept")
	require.Equal(t, 2, m.m.ForgetPipelines(t))
	eventually(t, func() bool {
		list, err := m.ListPipelines(t.Context(), &pb.ListPipelinesRequest{})
		return err == nil && len(list.GetPipelines()) == 0
	})
	require.Zero(t, m.m.ForgetPipelines(t))
}

// The outputs of a job reach another one by the manager, which keeps them sealed, and as long as the pipeline.
func TestOutputsOfAWorkflowAreSealedAndKeptAsLongAsIt(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.change = func(cfg *manager.Config) { cfg.Pipelines, cfg.Keep = managed.Pipelines{}, time.Second }
	m := f.start(t)
	source, _, _, err := managed.Source(standalone.Source{
		Name: "w.yml", Format: standalone.GitHub, WorkDir: t.TempDir(), Elsewhere: true, Text: []byte(`
on: push
jobs:
  a: {outputs: {o: an-output}, steps: [{run: "true"}]}
  b: {needs: a, steps: [{run: 'test "${{ needs.a.outputs.o }}" = an-output'}]}
`),
	})
	require.NoError(t, err)
	id := m.submitPipeline(&pb.SubmitPipelineRequest{Source: source})
	require.Equal(t, "success", m.restOf(id).GetStatus())
	kept := m.m.KeptOutputs(t)
	require.Len(t, kept, 1, "b has none")
	require.NotContains(t, string(kept[0]), "an-output")
	eventually(t, func() bool {
		list, err := m.ListPipelines(t.Context(), &pb.ListPipelinesRequest{})
		return err == nil && len(list.GetPipelines()) == 0
	})
	require.Zero(t, m.m.ForgetPipelines(t))
	require.Empty(t, m.m.KeptOutputs(t))
}

// Symptom: a NATS server with the max_payload that it has by itself takes no outputs of 1 MiB. Their build did not end.
func TestABuildWhoseOutputsCannotBeKeptFails(t *testing.T) {
	t.Parallel()
	m := withPipelines(newFleet(t)).start(t)
	m.m.BoundRequests(64 << 10)
	source, _, _, err := managed.Source(standalone.Source{
		Name: "w.yml", Format: standalone.GitHub, WorkDir: t.TempDir(), Elsewhere: true, Text: []byte(`
on: push
jobs:
  a:
    outputs: {o: "${{ steps.s.outputs.o }}"}
    steps: [{id: s, run: 'printf "o=%0100000d\n" 1 >> "$GITHUB_OUTPUT"'}]
`),
	})
	require.NoError(t, err)
	ended := m.restOf(m.submitPipeline(&pb.SubmitPipelineRequest{Source: source}))
	require.Equal(t, "failure", ended.GetStatus())
	require.Empty(t, m.m.KeptOutputs(t))
	builds, err := m.List(t.Context(), &pb.ListRequest{})
	require.NoError(t, err)
	require.Len(t, builds.GetBuilds(), 1)
	require.Contains(t, builds.GetBuilds()[0].GetResult().GetMessage(), "at most 65536 can be kept")
}

// Of the jobs of a resource group one runs at a time, also if they are in several pipelines. A job that is cancelled
// while it waits for its turn holds up no other.
func TestAResourceGroupHoldsForAllPipelines(t *testing.T) {
	t.Parallel()
	m := withPipelines(newFleet(t)).start(t)
	wait, open := gate(t)
	line, times := ran(t)
	var ids []string
	for i := range 3 {
		req := pipelineOf(t, fmt.Sprintf("a: {script: [%q, %q], resource_group: g}\n", line(fmt.Sprint("n", i)), wait))
		req.Repository = "r"
		ids = append(ids, m.submitPipeline(req))
		if i == 0 {
			eventually(t, func() bool { return times()["n0"] == 1 })
		}
	}
	for _, id := range ids[1:] {
		m.awaitPipeline(id, func(p *pb.Pipeline) bool {
			return strings.Contains(strings.Join(p.GetNotes(), ""), "waits for")
		})
	}
	_, err := m.Cancel(t.Context(), &pb.CancelRequest{Id: ids[1]})
	require.NoError(t, err)
	require.Equal(t, "cancelled", m.restOf(ids[1]).GetStatus())
	require.Equal(t, map[string]int{"n0": 1}, times())
	open()
	require.Equal(t, "success", m.restOf(ids[0]).GetStatus())
	require.Equal(t, "success", m.restOf(ids[2]).GetStatus())
	require.Equal(t, map[string]int{"n0": 1, "n2": 1}, times())
	builds, err := m.List(t.Context(), &pb.ListRequest{Phase: pb.Build_queued})
	require.NoError(t, err)
	require.Empty(t, builds.GetBuilds())
}

// A child pipeline runs as part of its parent, and its jobs have logs.
func TestAChildPipelineOfAManager(t *testing.T) {
	t.Parallel()
	m := withPipelines(newFleet(t)).start(t)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "child.yml"), []byte(`
c: {script: ['echo child $V']}
m: {script: ['echo played'], when: manual, allow_failure: false}
`), 0o600))
	source, _, _, err := managed.Source(standalone.Source{
		Name: ".gitlab-ci.yml", Format: standalone.GitLabCI, WorkDir: dir, Elsewhere: true, Text: []byte(`
t: {trigger: {include: /child.yml, strategy: depend}, variables: {V: "7"}}
`),
	})
	require.NoError(t, err)
	id := m.submitPipeline(&pb.SubmitPipelineRequest{Source: source})
	p := m.restOf(id)
	require.Equal(t, "t / c success, t / m manual, t success", jobsOf(p))
	require.Equal(t, pb.Pipeline_blocked, p.GetPhase())
	require.Equal(t, "child 7\n", said(m.logOf(p, "t / c")))
	_, err = m.PlayPipeline(t.Context(), &pb.PlayPipelineRequest{Id: id, Job: "t / m"})
	require.NoError(t, err)
	require.Equal(t, "played\n", said(m.logOf(m.restOf(id), "t / m")))
}
