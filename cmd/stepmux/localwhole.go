package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/internal/endsignal"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/checkout"
	"github.com/stepmux/stepmux/internal/standalone/githubpipeline"
	"github.com/stepmux/stepmux/internal/standalone/gitlabci"
	"github.com/stepmux/stepmux/internal/standalone/gitlabpipeline"
	"github.com/stepmux/stepmux/internal/standalone/whole"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// wholeFlags choose the jobs of a whole pipeline.
type wholeFlags struct {
	jobs   int
	list   bool
	needs  bool
	resume bool
	tests  string
	choice whole.Choice
	event  eventFlags
}

// wholeNames are the names of wholeFlags.
var wholeNames = []string{"jobs", "list", "needs", "manual", "resume", "report-junit", "stage", "skip", "skip-trigger",
	"wait-delayed",
}

func (f *wholeFlags) register(fl *pflag.FlagSet) {
	fl.IntVar(&f.jobs, "jobs", runtime.GOMAXPROCS(0), "run so many jobs of a pipeline at once (default: processors)")
	fl.Lookup("jobs").DefValue = ""
	fl.BoolVar(&f.list, "list", false, "list the jobs of the pipeline, with their needs, and those that it does not "+
		"have; run nothing")
	fl.BoolVar(&f.needs, "needs", false, "with --job-name: also run the jobs that the job needs")
	fl.BoolVar(&f.resume, "resume", false, "run only the jobs that failed or did not run in the last run of this file, "+
		"with the artifacts of the others")
	fl.StringArrayVar(&f.choice.Manual, "manual", nil, "also run this manual `JOB`; repeatable")
	fl.StringArrayVar(&f.choice.Stages, "stage", nil, "run only the jobs of this `STAGE`; repeatable")
	fl.StringArrayVar(&f.choice.Skip, "skip", nil, "leave out this `JOB`; repeatable")
	fl.BoolVar(&f.choice.SkipTriggers, "skip-trigger", false, "leave out jobs that start pipelines which cannot run here, "+
		"such as those of other projects")
	fl.BoolVar(&f.choice.WaitDelayed, "wait-delayed", false, "let delayed jobs wait for their time (start_in)")
	grouped(fl, pipelineGroup)
	f.event.register(fl)
	fileFlag(fl, &f.tests, "report-junit", "write the reports:junit of all jobs to this `FILE`, as one report")
	grouped(fl, fileGroup)
}

// ofOneJob are flags that have no meaning for a whole pipeline: with one of them a single job runs.
var ofOneJob = []string{"output-file", "provenance", "matrix", "container"}

// isWhole reports whether the flags ask for the whole pipeline of src.
func (f *localFlags) isWhole(cmd *cobra.Command, src standalone.Source) (bool, error) {
	given := func(names []string) string {
		i := slices.IndexFunc(names, func(name string) bool { return cmd.Flags().Changed(name) })
		if i < 0 {
			return ""
		}
		return names[i]
	}
	if err := checkFormat(cmd, src); err != nil {
		return false, err
	}
	ofWhole, ofJob := given(wholeNames), given(ofOneJob)
	switch {
	case f.whole.jobs < 1:
		return false, errors.New("--jobs: use a number above 0")
	case f.whole.needs && f.jobName == "":
		return false, errors.New("--needs: name the job with --job-name")
	case f.jobName != "" && !f.whole.needs && ofWhole != "":
		return false, fmt.Errorf("--%s is for a whole pipeline; with --job-name it needs --needs", ofWhole)
	case ofWhole != "" && ofJob != "":
		return false, fmt.Errorf("--%s is for one job, and --%s for a whole pipeline", ofJob, ofWhole)
	case f.jobName != "":
		return f.whole.needs, nil
	default:
		return isPipeline(src) && ofJob == "", nil
	}
}

// plan returns the chosen jobs of the pipeline of src.
func (f *localFlags) plan(src standalone.Source) (p *whole.Pipeline, notices []string, err error) {
	if src.Format == standalone.GitHub {
		p, notices, err = githubpipeline.Read(src)
	} else {
		if f.whole.event.event == "" {
			push := gitlabci.Variable{Name: "CI_PIPELINE_SOURCE", Value: "push"}
			src.Predefined = append(slices.Clip(src.Predefined), push)
		}
		src.Skip = f.whole.choice.Skip
		p, err = gitlabpipeline.Read(src)
	}
	if err != nil {
		return nil, nil, err
	}
	if p.Out != "" {
		return nil, nil, fmt.Errorf("%s: no job runs: with these variables %s starts no pipeline", src.Name, p.Out)
	}
	f.whole.choice.Job = f.jobName
	if err := p.Choose(f.whole.choice); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", src.Name, err)
	}
	return p, append(notices, src.Notices...), nil
}

// runWhole runs the pipeline of src, or lists its jobs.
func (f *localFlags) runWhole(cmd *cobra.Command, src standalone.Source) (err error) {
	cfg, err := f.wholeConfig(cmd.Context())
	if err != nil {
		return err
	}
	src.WorkDir = cfg.WorkDir
	p, notices, err := f.plan(src)
	if err != nil {
		return err
	}
	if f.whole.list {
		return listJobs(cmd.OutOrStdout(), p, f.output == "json")
	}
	if len(p.Jobs) == 0 {
		return fmt.Errorf("%s: no job runs; --list says why", src.Name)
	}
	if err := cmp.Or(whole.Check(p), f.checkImages(p)); err != nil {
		return fmt.Errorf("%s: %w", src.Name, err)
	}
	warnings := warningsOf(p)
	if err := f.checkScripts(warnings); err != nil {
		return err
	}
	ctx, abort, stop := endings(cmd.Context(), endsignal.All...)
	defer stop()
	ctx, noReader := context.WithCancelCause(ctx)
	defer noReader(nil)
	show := newReporter(f.output, cmd.OutOrStdout(), cmd.ErrOrStderr(), func(err error) {
		noReader(fmt.Errorf("the output of the jobs cannot be written: %w", err))
	})
	defer func() {
		if lost := show.close(ctx, abort, readerPatience); lost != nil && err == nil {
			err = withCode(exitSystem, nil) // close has reported it
		}
	}()
	note := func(text string) { show.say("note: " + text) }
	for _, text := range slices.Concat(notices, standalone.WarningsToTell(warnings)) {
		note(text)
	}
	report, err := f.runJobs(ctx, abort, src, p, cfg, show)
	if report == nil {
		if errors.Is(err, whole.ErrNothingToResume) {
			return fmt.Errorf("--resume: %w", err)
		}
		return systemError(err)
	}
	report.ExitCode = wholeCode(ctx, report, err)
	return withCode(report.ExitCode, errors.Join(err, f.writeReports(report, show)))
}

// readerPatience is how long the end of a pipeline waits for a reader of its output that takes nothing.
const readerPatience = time.Minute

// wholeConfig checks the flags, and returns the configuration of each job.
func (f *localFlags) wholeConfig(ctx context.Context) (cfg standalone.Config, err error) {
	if cfg, err = f.config(ctx); err != nil {
		return cfg, err
	}
	if f.whole.tests != "" {
		if err := standalone.CheckOutputFile(f.whole.tests); err != nil {
			return cfg, fmt.Errorf("--report-junit: %w", err)
		}
		inputs := []flagFile{{"the job", f.input}, {"--report", f.report}}
		if err := areApart(inputs, flagFile{"--report-junit", f.whole.tests}); err != nil {
			return cfg, err
		}
	}
	cfg.WorkDir, err = f.dir()
	return cfg, err
}

// warningsOf returns the warnings about the jobs of p and of its children, each once.
func warningsOf(p *whole.Pipeline) (all []standalone.Problem) {
	for _, j := range p.Jobs {
		more := j.Warnings
		if j.Trigger != nil && j.Trigger.Child != nil {
			more = append(slices.Clip(more), warningsOf(j.Trigger.Child)...)
		}
		for _, w := range more {
			if !slices.Contains(all, w) {
				all = append(all, w)
			}
		}
	}
	return all
}

// runJobs runs the jobs of p.
func (f *localFlags) runJobs(
	ctx, abort context.Context, src standalone.Source, p *whole.Pipeline, cfg standalone.Config, show *reporter,
) (report *whole.Report, err error) {
	note := func(text string) { show.say("note: " + text) }
	files, err := projectFiles(ctx, cfg.WorkDir, 0, note)
	if err != nil {
		return nil, fmt.Errorf("find the files of the project: %w", err)
	}
	temp, err := makeTempDir(ctx, "pipeline-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, temp.remove()) }()
	cfg.TempDir = temp.path
	stages := newStageView(p)
	show.watchLines(stages.lines)
	single := len(p.Jobs)+len(p.Left) == 1 && p.Jobs[0].Trigger == nil
	of := whole.Config{
		Config: cfg, Files: files, Slots: f.whole.jobs, Resume: f.whole.resume, WithTests: f.whole.tests != "",
		Name: filepath.Join(cfg.WorkDir, src.Name), Say: note,
		Output: func(job string) (stdout, stderr io.Writer, end func()) {
			out, errs := show.text(termtext.Line(job)), show.text(termtext.Line(job))
			if single {
				out.prefix, errs.prefix = nil, nil
			}
			return out, errs, func() { _, _ = out.Close(), errs.Close() }
		},
		Watch: func(job, status string) {
			stages.observe(job, status)
			show.draw()
		},
	}
	if base, err := os.UserCacheDir(); err == nil {
		of.CachesDir = engine.CachesOf(base, engine.LocalProject(cfg.WorkDir))
		repository := engine.LocalProject(checkout.Repository(ctx, cfg.WorkDir))
		of.StateDir = filepath.Join(base, "stepmux-pipelines", repository)
	}
	if of.Executor, err = f.executor(of); err != nil {
		return nil, err
	}
	return whole.Run(ctx, abort, p, of)
}

// writeReports shows how the jobs of a pipeline ended, and writes the files of reports.
func (f *localFlags) writeReports(report *whole.Report, show *reporter) (err error) {
	if f.output == "json" {
		err = writeJSON(show.out, report)
	} else {
		summarize(show, report)
	}
	if f.report != "" {
		err = errors.Join(err, writeReport(f.report, report))
	}
	if f.whole.tests != "" {
		err = errors.Join(err, standalone.WriteFile(f.whole.tests, report.Tests))
	}
	return err
}

// wholeCode returns the exit code of a pipeline.
func wholeCode(ctx context.Context, report *whole.Report, err error) int {
	switch {
	case report.Status == whole.Success && err == nil:
		return 0
	case report.Status == whole.Failure:
		return scriptCode(report.ExitCode)
	case err != nil:
		return cmp.Or(endsignal.Code(ctx), exitSystem)
	default:
		return cmp.Or(endsignal.Code(ctx), report.ExitCode, exitSystem)
	}
}
