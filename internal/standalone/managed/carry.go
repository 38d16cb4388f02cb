package managed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/instance/manager"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/jobplace"
	"github.com/stepmux/stepmux/internal/standalone/whole"
	"github.com/stepmux/stepmux/internal/standalone/whole/carry"
	"github.com/stepmux/stepmux/pipeline"
	"github.com/stepmux/stepmux/remote"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// Pipelines implements manager.Pipelines.
type Pipelines struct{}

// Read implements manager.Pipelines.
func (Pipelines) Read(asked *pb.SubmitPipelineRequest) (manager.Planned, error) {
	p, listed, err := read(asked)
	if err != nil {
		return nil, err
	}
	if _, err := pipeline.New(p.Graph); err != nil {
		return nil, err
	}
	to := &planned{pipeline: p, listed: listed, asked: asked}
	for _, v := range asked.GetOptions().GetVariables() {
		if v.GetMasked() && v.GetValue() != "" {
			_ = to.secrets.Add(v.GetValue()) // the submitter has told of one that is too short
		}
	}
	return to, nil
}

// Remarks implements manager.Pipelines.
func (Pipelines) Remarks(text []byte) ([]byte, error) {
	t, err := trace.Parse(text)
	if err != nil {
		return nil, err
	}
	return whole.RemarksText(standalone.ReportOf(t))
}

// planned implements manager.Planned.
type planned struct {
	pipeline *whole.Pipeline
	listed   []string
	asked    *pb.SubmitPipelineRequest
	secrets  mask.Set // in no text that is shown
}

// Shown implements manager.Planned.
func (p *planned) Shown() *pb.Pipeline {
	to := &pb.Pipeline{Name: p.secrets.Mask(p.pipeline.Name), Stages: p.pipeline.Graph.Stages}
	for i, j := range p.pipeline.Jobs {
		to.Jobs = append(to.Jobs, &pb.PipelineJob{
			Name: j.Name, Base: j.Base, Stage: j.Stage, Status: "waiting", Manual: p.pipeline.Graph.Nodes[i].Manual,
		})
	}
	for _, l := range p.pipeline.Left {
		to.Jobs = append(to.Jobs, &pb.PipelineJob{
			Name: l.Name, Base: l.Base, Stage: l.Stage, Status: whole.LeftOut, Why: l.Why,
		})
	}
	return to
}

// Warnings implements manager.Planned.
func (p *planned) Warnings() (list []*pb.Warning) {
	for _, j := range p.pipeline.Jobs {
		for _, w := range j.Warnings {
			list = append(list, &pb.Warning{
				Where: w.Where, Line: int32(w.Line), Column: int32(w.Column), Message: w.Message, // of a text
			})
		}
	}
	return list
}

// Containers implements manager.Planned.
func (p *planned) Containers(check func(own *place.Spec) error) error {
	if !p.asked.GetInImage() {
		return nil
	}
	return jobplace.Each(p.pipeline, func(_ *standalone.Job, own *place.Spec) error { return check(own) })
}

// Carry implements manager.Planned.
func (p *planned) Carry(ctx, life context.Context, run *manager.PipelineRun) (_ *pb.Pipeline, err error) {
	dir, err := run.Dir()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rmtree.Remove(dir)) }()
	canceled := run.Canceled()
	delays := map[string]time.Duration{}
	setDelays(p.pipeline, "", delays, run.Dues(), canceled)
	cfg := whole.Config{
		Config: standalone.Config{WorkDir: dir, TempDir: dir}, Files: p.listed, Slots: run.Slots(),
		Project:  &carry.Archive{Digest: p.asked.GetProject(), Size: p.asked.GetProjectBytes()},
		Executor: executor{run, p, &carry.Elsewhere{}}, Say: func(line string) { run.Note(p.secrets.Mask(line)) },
		Output: func(string) (stdout, stderr io.Writer, end func()) { return io.Discard, io.Discard, func() {} },
		Watch: func(job, status string) {
			if delay := delays[job]; status == delayed && delay > 0 {
				run.Due(job, delay)
			}
			if run.Watch(job, status); status == pipeline.Ready.String() {
				run.Waits(job, "waits for other jobs of the pipeline (see --jobs)")
			}
		},
		Lock: func(ctx context.Context, name string, a *carry.Attempt) (func(), error) {
			unlock, err := run.Lock(ctx, name, attemptOf(a), func(holder string) {
				line := "waits for the resource group " + name + ", which the build " + holder + " has"
				a.Say(line)
				run.Waits(a.Name, p.secrets.Mask(line))
			})
			if err != nil && a.Interruptible && run.IsRedundant() {
				err = whole.ErrNewerCommit
			}
			return unlock, err
		},
		Enter: func(ctx context.Context, m whole.Member, tell func(string)) (context.Context, func(), error) {
			own, leave, err := run.Enter(ctx, manager.PipelineTurn(m), func(holder string) {
				line := fmt.Sprintf("waits for the concurrency group %q, which the pipeline %s has", m.Group, holder)
				if tell(line); m.Job != "" {
					run.Waits(m.Job, p.secrets.Mask(line))
				}
			})
			if errors.Is(err, manager.ErrLeftGroup) {
				err = whole.ErrCancelled
			}
			return own, leave, err
		},
		Began: run.Began,
	}
	if p.asked.GetSource().GetMarks() != "" { // somebody reports the job elsewhere
		cfg.Called = func(job string, outputs map[string]string) { run.KeepOutputs(job, p.outputsOf(outputs, run.Note)) }
	}
	if !canceled {
		cfg.Plays = &whole.Plays{}
		run.Play(cfg.Plays.Play)
	}
	report, err := whole.Run(ctx, life, p.pipeline, cfg)
	if report == nil {
		return nil, err
	}
	if err != nil {
		run.Note(p.secrets.Mask(err.Error()))
	}
	if why := run.Replaced(); why != "" {
		run.Note(why)
	}
	return p.end(report, run.Canceled(), run.Replaced() != ""), nil
}

// outputsOf returns the outputs of a workflow that was called, without those that have secrets.
func (p *planned) outputsOf(values map[string]string, note func(string)) *stepmuxv1.Outputs {
	outputs := &stepmuxv1.Outputs{}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		one := &stepmuxv1.Outputs_Output{Name: name, Value: values[name]}
		if p.secrets.Mask(one.Value) != one.Value {
			one.Value, one.Masked = "", true
			note(fmt.Sprintf("the output %q is left out: it contains a secret", name))
		}
		outputs.Given = append(outputs.Given, one)
	}
	return outputs
}

// Series implements manager.Planned.
func (p *planned) Series() (name, version, newer string) {
	return p.pipeline.Series, p.pipeline.Version, newerOf[p.pipeline.Newer]
}

var newerOf = map[whole.Newer]string{
	whole.EndUnlessStarted: manager.EndUnlessStarted, whole.EndInterruptible: manager.EndInterruptible,
	whole.EndNothing: manager.EndNothing,
}

// attemptOf describes an attempt to the manager.
func attemptOf(a *carry.Attempt) manager.PipelineAttempt {
	return manager.PipelineAttempt{
		Job: a.Name, Number: a.Number, Started: a.Started, Keeps: a.Keeps, Interruptible: a.Interruptible,
	}
}

// exitReplaced is the exit code of a pipeline that a newer one has cancelled.
const exitReplaced = 125

// delayed is the status of a job that waits for its time.
const delayed = "delayed"

// setDelays lets delays that have begun end at their times, and collects all delays by the names of the jobs.
func setDelays(
	p *whole.Pipeline, prefix string, delays map[string]time.Duration, dues map[string]time.Time, canceled bool,
) {
	for i := range p.Graph.Nodes {
		n, name := &p.Graph.Nodes[i], prefix+p.Jobs[i].Name
		if n.Delay > 0 {
			delays[name] = n.Delay
			if at, ok := dues[name]; ok {
				n.Delay = max(time.Until(at), 0)
			}
			if canceled {
				n.Delay = 0
			}
		}
		if t := p.Jobs[i].Trigger; t != nil && t.Child != nil {
			setDelays(t.Child, name+whole.Separator, delays, dues, canceled)
		}
	}
}

// end describes how a pipeline stands that does not go on by itself.
func (p *planned) end(report *whole.Report, canceled, replaced bool) *pb.Pipeline {
	to := &pb.Pipeline{
		Name: p.secrets.Mask(p.pipeline.Name), Stages: p.pipeline.Graph.Stages, Phase: pb.Pipeline_ended,
		Status: report.Status, ExitCode: int32(report.ExitCode), CriticalPath: report.CriticalPath, // an exit code
	}
	known := map[string]*about{}
	collect(p.pipeline, "", known)
	blocked := jobsOf(to, report, "", known, canceled)
	switch {
	case canceled && to.GetStatus() == whole.Success:
		to.Status = whole.Cancelled
	case blocked && to.GetStatus() == whole.Success:
		to.Phase = pb.Pipeline_blocked
	}
	switch {
	case to.GetStatus() != whole.Cancelled:
	case replaced:
		to.ExitCode = exitReplaced
	case to.GetExitCode() == 0:
		to.ExitCode = 1
	}
	return to
}

// about has facts about a job that a report does not have. blocks says that others wait for the manual job.
type about struct {
	base           string
	manual, blocks bool
}

// collect collects facts about the jobs of a pipeline, and of its children as far as they are known.
func collect(p *whole.Pipeline, prefix string, known map[string]*about) {
	for i, j := range p.Jobs {
		name, n := prefix+j.Name, p.Graph.Nodes[i]
		known[name] = &about{base: prefix + j.Base, manual: n.Manual, blocks: n.Manual && !n.Optional}
		if j.Trigger != nil && j.Trigger.Child != nil {
			collect(j.Trigger.Child, name+whole.Separator, known)
		}
	}
}

// jobsOf adds the jobs of a report, and reports whether some of them are blocked.
func jobsOf(
	to *pb.Pipeline, report *whole.Report, prefix string, known map[string]*about, canceled bool,
) (blocked bool) {
	for _, j := range report.Jobs {
		name := prefix + j.Name
		its := known[name]
		if its == nil {
			its = &about{base: name}
		}
		one := &pb.PipelineJob{
			Name: name, Base: its.base, Manual: its.manual, Stage: j.Stage, Status: j.Status, Why: j.Why,
			Attempts: int32(min(j.Attempts, math.MaxInt32)), Started: timeOf(j.Started), Finished: timeOf(j.Finished),
		}
		if j.ExitCode != nil {
			one.ExitCode = int32(*j.ExitCode) // an exit code
		}
		switch {
		case one.GetStatus() != isBlocked:
		case canceled:
			one.Status, one.Why = whole.Cancelled, ""
		case one.GetWhy() == isManual:
			one.Status, one.Why = isManual, ""
			blocked = blocked || its.blocks
		default:
			blocked = true
		}
		to.Jobs = append(to.Jobs, one)
		if j.Child != nil && jobsOf(to, j.Child, name+whole.Separator, known, canceled) {
			blocked = true
		}
	}
	return blocked
}

// isBlocked is the status of jobs that wait for a manual one, directly or not, and isManual that of the manual one.
const isBlocked, isManual = "blocked", "manual"

func timeOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// executor carries out attempts of jobs as builds of the manager's queue.
type executor struct {
	run *manager.PipelineRun
	*planned
	caches *carry.Elsewhere
}

// Execute implements carry.Executor.
func (e executor) Execute(ctx, _ context.Context, a *carry.Attempt) (_ *carry.Outcome, err error) {
	attempt := attemptOf(a)
	attempt.Request = func(ctx context.Context) (*pb.SubmitRequest, error) { return e.request(ctx, a) }
	id, result, err := e.run.Build(ctx, attempt)
	if err != nil {
		return nil, err
	}
	report := reportOf(result)
	if report.Status == whole.Cancelled && a.Interruptible && e.run.IsRedundant() {
		return nil, whole.ErrNewerCommit
	}
	if a.Outputs && ctx.Err() == nil {
		given, err := e.run.Outputs(ctx, id)
		if err != nil {
			return nil, err
		}
		outputs, masked := map[string]string{}, []string(nil)
		for _, o := range given.GetGiven() {
			if o.GetMasked() {
				masked = append(masked, o.GetName())
			} else {
				outputs[o.GetName()] = o.GetValue()
			}
		}
		report.SetStepOutputs(outputs, masked)
	}
	if ctx.Err() != nil || result.GetArtifacts() == 0 || len(a.Patterns()) == 0 {
		return a.GatherFrom(ctx, nil, report)
	}
	file, err := os.CreateTemp(string(a.Shelf), "from-")
	if err != nil {
		return nil, err
	}
	defer func() {
		file.Close()
		_ = os.Remove(file.Name()) // it may have another name by then
	}()
	err = e.run.ReadArtifacts(ctx, id, file)
	if errors.Is(err, fs.ErrNotExist) { // the job has run before
		a.Say("artifacts: they are not kept any more (see keep and keep-files of the manager)")
		return a.GatherFrom(ctx, nil, report)
	}
	if err != nil {
		return nil, err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return a.GatherFrom(ctx, file, report)
}

// The reasons of builds that took too long and that were canceled, in GitLab's words.
const timedOut, canceled = "job_execution_timeout", "job_canceled"

// reportOf returns the result of a build as that of a job.
func reportOf(r *pb.Result) *standalone.Report {
	report := &standalone.Report{Status: whole.Failure, Message: r.GetMessage()}
	switch r.GetReason() {
	case "":
		report.Status = whole.Success
	case pb.ScriptFailure:
		code := int(r.GetExitCode())
		report.Reason, report.ExitCode = standalone.Script, &code
	case timedOut:
		report.Reason = standalone.TimedOut
	case canceled:
		report.Status = whole.Cancelled
	default:
		report.Reason = standalone.System
	}
	if r == nil { // it did not begin
		report.Status = whole.Cancelled
	}
	return report
}

// request returns the request for the build of an attempt.
func (e executor) request(ctx context.Context, a *carry.Attempt) (*pb.SubmitRequest, error) {
	text, err := a.Text()
	if err == nil {
		err = remote.CheckSteps("the job "+a.Name, []byte(text))
	}
	if err != nil {
		return nil, err
	}
	job := &stepmuxv1.Job{
		Steps: []byte(text), StepsFile: e.asked.GetSource().GetName() + " " + a.Name, Generated: true, Env: a.Env,
		MayFail: a.MayFail, Outputs: a.Outputs,
	}
	for _, v := range a.Vars {
		job.Variables = append(job.Variables, &stepmuxv1.Variable{Key: v.Key, Value: v.Value, File: v.File, Masked: v.Masked})
	}
	options := e.asked.GetOptions()
	limit := a.Timeout
	if own := options.GetTimeout().AsDuration(); own > 0 && (limit == 0 || own < limit) {
		limit = own
	}
	if limit > 0 {
		job.Timeout = durationpb.New(limit)
	}
	job = job.With(&stepmuxv1.Job{
		PassEnv: options.GetPassEnv(), UnsafeExports: options.GetUnsafeExports(), Env: options.GetEnv(),
		MaskPrefixes: options.GetMaskPrefixes(),
	})
	if a.Source.Kind != trace.FromGitHub { // that job has them as an input
		job.Marks = e.asked.GetSource().GetMarks()
	}
	unique := func(patterns []string) []string { return slices.Compact(slices.Sorted(slices.Values(patterns))) }
	req := &pb.SubmitRequest{Job: job, Artifacts: unique(a.Patterns())}
	var notes []string
	req.Labels, notes = a.RunsOn.Choose(e.run.Labels())
	for _, note := range notes {
		e.run.Note(e.secrets.Mask(note))
	}
	req.Pipeline = &pb.PipelineBuild{
		AfterSuccess: unique(a.PatternsAfter(true)), AfterFailure: unique(a.PatternsAfter(false)),
		Remarks: a.Source.Kind == trace.FromGitHub && (e.asked.GetRemarks() || mayRemark(text)),
	}
	if err := e.contain(a, req.GetPipeline()); err != nil {
		return nil, err
	}
	if a.Services || e.asked.GetServices().GetRelay() != "" {
		req.Services = e.asked.GetServices()
	}
	if err := e.findCaches(ctx, a, req.GetPipeline()); err != nil {
		return nil, err
	}
	for _, files := range a.Archives[1:] {
		if err := e.keep(ctx, files); err != nil {
			return nil, err
		}
		req.Pipeline.Archives = append(req.Pipeline.Archives, &pb.Archive{Digest: files.Digest, Size: files.Size})
	}
	return req, nil
}

// mayRemark reports whether a job may make annotations or a summary, as far as its text says. A job that does has a
// trace, which costs it some 15 ms of processor time.
func mayRemark(text string) bool {
	return slices.ContainsFunc([]string{"uses", "::", "##[", "STEP_SUMMARY"}, func(part string) bool {
		return strings.Contains(text, part)
	})
}

// contain adds the container of an attempt to the request for its build.
func (e executor) contain(a *carry.Attempt, to *pb.PipelineBuild) error {
	if !e.asked.GetInImage() {
		return nil
	}
	own, err := jobplace.Of(a.Job)
	if err != nil {
		return err
	}
	if own == nil && a.Source.Kind == trace.FromGitHub {
		a.Say("the job names no container: it runs on a VM itself")
		return nil
	}
	to.InImage = true
	if own != nil {
		text, err := place.Format(own)
		if err != nil {
			return err
		}
		to.Container = []byte(text)
	}
	return nil
}

// keep gives an archive to the manager.
func (e executor) keep(ctx context.Context, files carry.Archive) error {
	file, err := os.Open(files.Path)
	if err != nil {
		return err
	}
	defer file.Close()
	return e.run.KeepArchive(ctx, files.Digest, files.Size, file)
}
