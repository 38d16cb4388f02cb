package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/internal/endsignal"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/checkout"
	"github.com/stepmux/stepmux/internal/standalone/whole"
)

// ofOneJob are flags that have no meaning for a whole pipeline: with one of them a single job runs.
var ofOneJob = []string{"output-file", "provenance", "matrix", "container"}

// isWhole reports whether the flags ask for the whole pipeline of src.
func (f *localFlags) isWhole(cmd *cobra.Command, src standalone.Source) (bool, error) {
	wanted, flag, err := f.whole.isAsked(cmd, src, f.jobName)
	ofJob := changed(cmd, ofOneJob)
	if err == nil && flag != "" && ofJob != "" {
		err = fmt.Errorf("--%s is for one job, and --%s for a whole pipeline", ofJob, flag)
	}
	return wanted && ofJob == "", err
}

// runWhole runs the pipeline of src, or lists its jobs.
func (f *localFlags) runWhole(cmd *cobra.Command, src standalone.Source) (err error) {
	cfg, err := f.wholeConfig(cmd.Context())
	if err != nil {
		return err
	}
	src.WorkDir = cfg.WorkDir
	p, notices, err := f.whole.plan(src, f.jobName)
	if err != nil {
		return err
	}
	if f.whole.list {
		tellNotes(cmd.ErrOrStderr(), p, notices)
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
	if err := f.whole.checkReports([]flagFile{{"the job", f.input}}, flagFile{"--report", f.report}); err != nil {
		return cfg, err
	}
	cfg.WorkDir, err = f.dir()
	return cfg, err
}

// runJobs runs the jobs of p.
func (f *localFlags) runJobs(
	ctx, abort context.Context, src standalone.Source, p *whole.Pipeline, cfg standalone.Config, show *reporter,
) (report *whole.Report, err error) {
	temp, err := makeTempDir(ctx, "pipeline-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, temp.remove()) }()
	cfg.TempDir = temp.path
	of, err := f.whole.config(ctx, cfg, src, p, show)
	if err != nil {
		return nil, err
	}
	if of.Executor, err = f.executor(of); err != nil {
		return nil, err
	}
	of.Git = checkout.Copy{} // the executor copies it, and need not unpack it
	return whole.Run(ctx, abort, p, of)
}

// writeReports shows how the jobs of a pipeline ended, and writes the files of reports.
func (f *localFlags) writeReports(report *whole.Report, show *reporter) error {
	err := f.whole.write(report, show)
	if f.report != "" {
		err = errors.Join(err, writeReport(f.report, report))
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
