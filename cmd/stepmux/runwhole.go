package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/connector/files"
	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/batch"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/jobplace"
	"github.com/stepmux/stepmux/internal/standalone/whole"
	"github.com/stepmux/stepmux/internal/standalone/whole/carry"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// notWhole are the flags of run that have no meaning for a whole pipeline, with the reasons.
var notWhole = map[string]string{
	"builds":        "a pipeline runs each job once; parallel or a matrix in the file makes several builds of it",
	"each":          "a job of a pipeline runs on one VM",
	"matrix":        "parallel:matrix in the file, or strategy.matrix of a workflow, makes the builds of a job",
	"max-failures":  "allow_failure and when, or continue-on-error and if, in the file say how a pipeline goes on",
	"artifacts":     "the file names the artifacts of its jobs",
	"artifacts-dir": "artifacts go to the jobs that need them",
}

// isWhole reports whether the flags ask for the whole pipeline of the only FILE.
func (f *runFlags) isWhole(cmd *cobra.Command, sources []standalone.Source) (bool, error) {
	for _, src := range sources {
		wanted, flag, err := f.whole.isAsked(cmd, src, f.jobName)
		switch {
		case err != nil:
			return false, err
		case !wanted:
			continue
		case len(sources) > 1:
			return false, fmt.Errorf("%s: a pipeline is the only FILE of a run; name one of its jobs with --job-name, or run "+
				"the files one after the other", src.Name)
		}
		for name, why := range notWhole {
			if cmd.Flags().Changed(name) && flag != "" {
				return false, fmt.Errorf("--%s is for one job, and --%s for a whole pipeline: %s", name, flag, why)
			}
			if cmd.Flags().Changed(name) {
				return false, fmt.Errorf("--%s is for one job, which --job-name names: %s", name, why)
			}
		}
		return true, nil
	}
	if flag := changed(cmd, wholeNames); flag != "" && len(sources) == 0 {
		return false, fmt.Errorf("--%s is for a .gitlab-ci.yml or a workflow", flag)
	}
	return false, nil
}

// runWhole runs the pipeline of src on VMs, or lists its jobs.
func (f *runFlags) runWhole(cmd *cobra.Command, r *jobReader, src standalone.Source) error {
	if err := r.ofProject(&src); err != nil {
		return err
	}
	if err := f.whole.event.applyTo(cmd, &src); err != nil {
		return err
	}
	p, notices, err := f.whole.plan(src, f.jobName)
	if err != nil {
		return err
	}
	if f.whole.list {
		tellNotes(cmd.ErrOrStderr(), p, notices)
		return listJobs(cmd.OutOrStdout(), p, f.output == "json")
	}
	if err := f.checkWhole(src, p); err != nil {
		return err
	}
	notices = append(notices, standalone.WarningsToTell(warningsOf(p))...)
	f.remarks = f.whole.sarif != "" || f.whole.summaries != "" || f.output == "json" && src.Format == standalone.GitHub
	removeTraces, err := f.prepare(cmd.Context(), []string{src.Name}, len(p.Jobs), f.way.PassphraseCommand)
	if err != nil {
		return err
	}
	defer removeTraces()

	ctx, abort, stop := endings(cmd.Context(), f.endSignals()...)
	defer stop()
	given := runInput{inContainers: f.inImage || f.spec.Image != "" || f.spec.Container != ""}
	if given.bootstrap, err = f.bootstraps(); err != nil {
		return err
	}
	return f.shown(ctx, abort, cmd, func(ctx context.Context, show *reporter) (err error) {
		for _, text := range notices {
			show.say("note: " + text)
		}
		vms, err := f.open(ctx, given, show)
		if err != nil {
			return err
		}
		defer vms.close()
		show.watch(len(p.Jobs), vms.provider.Stat)
		on := &onVMs{runFlags: f, reader: r, vms: vms, show: show, file: src.Name}
		if on.services = newJobServices(ctx, src); on.services != nil {
			defer func() { err = errors.Join(err, on.services.close()) }()
		}
		return f.runPipeline(ctx, abort, src, p, on)
	})
}

// checkWhole checks the flags, and that p, the pipeline of src, can run.
func (f *runFlags) checkWhole(src standalone.Source, p *whole.Pipeline) error {
	if len(p.Jobs) == 0 {
		return fmt.Errorf("%s: no job runs; --list says why", src.Name)
	}
	if err := whole.Check(p); err != nil {
		return fmt.Errorf("%s: %w", src.Name, err)
	}
	if err := f.checkScripts(warningsOf(p)); err != nil {
		return err
	}
	files := []flagFile{{"--output-file", f.traces}, {"--provenance", f.provenances}}
	if err := f.whole.checkReports([]flagFile{{"the job", src.Name}}, files...); err != nil {
		return err
	}
	if err := f.check(f.inImage); err != nil {
		return err
	}
	if err := f.checkPlaces(p); err != nil {
		return fmt.Errorf("%s: %w", src.Name, err)
	}
	return nil
}

// runPipeline runs the jobs of p, and shows how they ended.
func (f *runFlags) runPipeline(
	ctx, abort context.Context, src standalone.Source, p *whole.Pipeline, on *onVMs,
) error {
	_, _ = rand.Read(on.prefix[:]) // never fails
	report, err := f.runJobsOf(ctx, abort, src, p, on)
	if report == nil {
		if errors.Is(err, whole.ErrNothingToResume) {
			return fmt.Errorf("--resume: %w", err)
		}
		return systemError(err)
	}
	if !on.show.json {
		on.show.summary(on.reports, on.vms.provider.Stat())
	}
	report.ExitCode = wholeCode(ctx, report, err)
	return f.unlessLost(withCode(report.ExitCode, errors.Join(err, f.whole.write(report, on.show))))
}

// leastReady is how many jobs wait for a slot at least, besides twice as many as there are slots: more would only cost
// memory, as each has its text ready.
const leastReady = 128

// runJobsOf runs the jobs of p.
func (f *runFlags) runJobsOf(
	ctx, abort context.Context, src standalone.Source, p *whole.Pipeline, on *onVMs,
) (report *whole.Report, err error) {
	temp, err := makeTempDir(ctx, "pipeline-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, temp.remove()) }()
	of, err := f.whole.config(ctx, standalone.Config{
		WorkDir: src.WorkDir, TempDir: temp.path, Timeout: f.timeout,
	}, src, p, on.show)
	if err != nil {
		return nil, err
	}
	of.Executor, of.Name = on, "run "+of.Name // the files of a VM are not those of this machine
	on.caches.dir = carry.CacheDir(of.CachesDir)
	if of.Slots == 0 {
		of.Slots = leastReady
		for _, vm := range on.vms.provider.Stat().Instances {
			of.Slots += 2 * vm.Capacity
		}
	}
	return whole.Run(ctx, abort, p, of)
}

// onVMs carries out the jobs of a pipeline as builds on VMs.
type onVMs struct {
	*runFlags
	reader *jobReader
	vms    *runVMs
	show   *reporter
	// services are those of a workflow's actions. May be nil.
	services *jobServices
	file     string // with the pipeline
	prefix   [3]byte
	number   atomic.Int64 // of the last build
	caches   vmCaches

	mu      sync.Mutex // guards the following
	reports []batch.Report
}

// Execute implements [carry.Executor].
func (v *onVMs) Execute(ctx, abort context.Context, a *carry.Attempt) (*carry.Outcome, error) {
	build, err := v.build(a) //nolint:contextcheck // provenance is signed when a build has ended, also after ctx
	if err != nil {
		a.Say(err.Error())
		return &carry.Outcome{Report: &standalone.Report{Status: whole.Failure, Reason: standalone.Invalid}}, nil
	}
	caches, endCaches := v.caches.of(a)
	defer endCaches()
	build.Job.Caches = caches
	var packed *os.File
	defer func() {
		if packed != nil {
			packed.Close()
			_ = os.Remove(packed.Name()) // fails if the archive was kept
		}
	}()
	if patterns := a.Patterns(); len(patterns) > 0 {
		build.Job.Artifacts = &files.Artifacts{
			Paths: patterns, After: a.PatternsAfter, Keep: true, Dir: string(a.Shelf),
			Take: func(_ context.Context, from *os.File) (err error) {
				packed, err = takeOver(from, filepath.Join(string(a.Shelf), ".of-"+build.ID))
				return err
			},
		}
	}
	v.show.about(build.ID, v.file+" "+termtext.Line(a.Name), a.Warnings)
	one := v.batch(v.vms, v.show)
	one.Builds, one.Timeout = []batch.Build{build}, a.Timeout
	started := one.OnStart
	one.OnStart = func(build, on string) {
		started(build, on)
		a.Started()
	}
	report, err := v.runOne(ctx, abort, one, a)
	if err != nil {
		return nil, err
	}
	return a.GatherFrom(ctx, packed, report)
}

// runOne runs the only build of a batch, that of an attempt.
func (v *onVMs) runOne(
	ctx, abort context.Context, one batch.Batch, a *carry.Attempt,
) (*standalone.Report, error) {
	var values map[string]string
	var masked []string
	job := &one.Builds[0].Job
	if a.Outputs {
		job.OnOutputs = func(given map[string]string, hidden []string) { values, masked = given, hidden }
	}
	made := false
	if a.Services {
		job.Services = v.services.of(&made)
	}
	ended := batch.Run(ctx, abort, v.vms.provider, one)[0]
	v.mu.Lock()
	v.reports = append(v.reports, ended)
	v.mu.Unlock()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	report := reportOnVM(ended)
	report.Steps = v.stepsOf(one.Builds[0].ID)
	report.SetStepOutputs(values, masked)
	report.Passing = made
	return report, nil
}

// takeOver gives a file that will be removed another name.
func takeOver(from *os.File, to string) (*os.File, error) {
	if err := os.Rename(from.Name(), to); err != nil {
		return nil, err
	}
	return os.Open(to)
}

// reportOnVM returns the report of a job that ran on a VM.
func reportOnVM(r batch.Report) *standalone.Report {
	if r.Err == nil {
		return &standalone.Report{Status: whole.Success}
	}
	report := &standalone.Report{Status: whole.Failure, Reason: standalone.System}
	switch {
	case r.Err.Reason == instance.ScriptFailure:
		report.Reason, report.ExitCode = standalone.Script, new(r.Err.ExitCode)
	case r.Err.Reason == instance.JobExecutionTimeout || r.Err.Late:
		report.Reason = standalone.TimedOut
	}
	return report
}

// build returns the build of an attempt.
func (v *onVMs) build(a *carry.Attempt) (b batch.Build, err error) {
	if n := len(a.Patterns()); n > wire.MaxPatterns || len(strings.Join(a.Patterns(), "")) > wire.MaxPatternBytes {
		return b, fmt.Errorf("its artifacts and reports have %d patterns: on a VM use at most %d of %d bytes together", n,
			wire.MaxPatterns, wire.MaxPatternBytes)
	}
	job, err := v.reader.onVM(v.file, a.Job)
	if err != nil {
		return b, err
	}
	if v.inImage && v.spec.Image == "" && job.own == nil && a.Source.Kind == trace.FromGitHub {
		a.Say("the job names no container: it runs on a VM itself")
	} else if b.Place, err = v.placeIn(job.own); err != nil {
		return b, err
	}
	b.ID = fmt.Sprintf("%x-%d", v.prefix, v.number.Add(1))
	over := v.options()
	if a.Timeout > 0 {
		over = over.With(&stepmuxv1.Job{Timeout: durationpb.New(a.Timeout)})
	}
	job.Job.Job = (&stepmuxv1.Job{Env: map[string]string{"CI": "true", "CI_JOB_ID": b.ID}}).With(job.Job.Job).With(over)
	job.Project = archiveOf(a.Archives[0])
	for _, more := range a.Archives[1:] {
		job.Overlays = append(job.Overlays, archiveOf(more))
	}
	b.Job, b.Log, b.Labels = v.traced(job.Job, b.ID, v.show.say), notClosed{a.Stdout}, v.labelsFor(a)
	return b, nil
}

// labelsFor returns the labels of the VMs that may run a job: those of its runs-on or tags that some VM has, and
// those of --select.
func (v *onVMs) labelsFor(a *carry.Attempt) map[string]string {
	var fleet []map[string]string
	for _, vm := range v.vms.provider.Stat().Instances {
		fleet = append(fleet, vm.Labels)
	}
	wanted, notes := a.RunsOn.Choose(fleet)
	for _, note := range notes {
		a.SayOnce(note)
	}
	maps.Copy(wanted, v.selected)
	return wanted
}

// archiveOf returns an archive as one for a VM.
func archiveOf(a carry.Archive) *files.Project {
	return &files.Project{
		Digest: a.Digest, Size: a.Size,
		Open: func(context.Context) (io.ReadSeekCloser, error) { return os.Open(a.Path) },
	}
}

// notClosed is a log that another owner closes.
type notClosed struct{ io.Writer }

// Close does nothing.
func (notClosed) Close() error { return nil }

// checkPlaces returns an error if it is certain that a job of p has no place.
func (f *runFlags) checkPlaces(p *whole.Pipeline) error {
	if !f.inImage {
		_, err := placeOf(&f.imageFlags, &f.podFlags, nil)
		return err
	}
	return jobplace.Each(p, func(_ *standalone.Job, own *place.Spec) error {
		_, err := f.placeIn(own)
		return err
	})
}

// placeIn returns the place of a job that describes its container by own, which may be nil.
func (f *runFlags) placeIn(own *place.Spec) (place.Description, error) {
	if f.inImage && f.spec.Image == "" && (own == nil || own.Image == "") {
		return nil, errNoImage
	}
	return placeOf(&f.imageFlags, &f.podFlags, own)
}
