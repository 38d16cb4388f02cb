package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/internal/buildinfo"
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
	choice whole.Choice
	event  eventFlags
	depth  string // of the history that jobs get

	// The files for reports.
	tests, sarif, summaries string
}

// wholeNames are the names of wholeFlags.
var wholeNames = []string{
	"git-depth", "jobs", "list", "needs", "manual", "resume", "report-junit", "report-sarif", "report-summary", "stage",
	"skip", "skip-trigger", "wait-delayed",
}

// register registers the flags. jobs is the default of --jobs, which the help calls otherwise.
func (f *wholeFlags) register(fl *pflag.FlagSet, jobs int, otherwise string) {
	fl.IntVar(&f.jobs, "jobs", jobs, "run at most so many jobs of a pipeline at once (default: "+otherwise+")")
	fl.Lookup("jobs").DefValue = ""
	f.registerChoice(fl)
	fl.BoolVar(&f.resume, "resume", false, "run only the jobs that failed or did not run in the last run of this file, "+
		"with the artifacts of the others")
	grouped(fl, pipelineGroup)
	f.event.register(fl)
	fileFlag(fl, &f.tests, "report-junit", "write the reports:junit of all jobs to this `FILE`, as one report")
	f.registerRemarks(fl)
}

// registerRemarks registers the flags for reports of annotations and summaries.
func (f *wholeFlags) registerRemarks(fl *pflag.FlagSet) {
	fileFlag(fl, &f.sarif, "report-sarif", "write the annotations of all jobs to this `FILE`, in the form of SARIF")
	fileFlag(fl, &f.summaries, "report-summary", "write the summaries of all jobs to this `FILE`, in Markdown")
	grouped(fl, fileGroup)
}

// registerChoice registers the flags that choose jobs.
func (f *wholeFlags) registerChoice(fl *pflag.FlagSet) {
	fl.BoolVar(&f.list, "list", false, "list the jobs of the pipeline, with their needs, and those that it does not "+
		"have; run nothing")
	fl.BoolVar(&f.needs, "needs", false, "with --job-name: also run the jobs that the job needs")
	fl.StringArrayVar(&f.choice.Manual, "manual", nil, "also run this manual `JOB`; repeatable")
	fl.StringArrayVar(&f.choice.Stages, "stage", nil, "run only the jobs of this `STAGE`; repeatable")
	fl.StringArrayVar(&f.choice.Skip, "skip", nil, "leave out this `JOB`; repeatable")
	fl.BoolVar(&f.choice.SkipTriggers, "skip-trigger", false, "leave out jobs that start pipelines which cannot run "+
		"here, such as those of other projects")
	fl.StringVar(&f.depth, "git-depth", "", "give each job a .git with so many commits of history: a number, all, "+
		"or none for no .git (default: the variable GIT_DEPTH, or else 20; for a workflow the largest fetch-depth, "+
		"or else 1)")
	fl.BoolVar(&f.choice.WaitDelayed, "wait-delayed", false, "let delayed jobs wait for their time (start_in)")
	grouped(fl, pipelineGroup)
}

// isAsked reports whether the flags ask for the whole pipeline of src, and returns one of them that does. jobName is
// the job that the flags name.
func (f *wholeFlags) isAsked(
	cmd *cobra.Command, src standalone.Source, jobName string,
) (is bool, flag string, err error) {
	if err := checkFormat(cmd, src); err != nil {
		return false, "", err
	}
	flag = changed(cmd, wholeNames)
	if err := f.checkDepth(); err != nil {
		return false, "", err
	}
	switch {
	case cmd.Flags().Changed("jobs") && f.jobs < 1:
		return false, "", errors.New("--jobs: use a number above 0")
	case f.needs && jobName == "":
		return false, "", errors.New("--needs: name the job with --job-name")
	case jobName != "" && !f.needs && flag != "":
		return false, "", fmt.Errorf("--%s is for a whole pipeline; with --job-name it needs --needs", flag)
	case jobName != "":
		return f.needs, flag, nil
	default:
		return isPipeline(src), flag, nil
	}
}

// checkDepth checks --git-depth.
func (f *wholeFlags) checkDepth() error {
	if f.depth == "" {
		return nil
	}
	if _, err := checkout.ParseDepth(f.depth); err != nil {
		return fmt.Errorf("--git-depth: %w", err)
	}
	return nil
}

// gitFor makes a repository in the new directory to, for the jobs of p, whose project is in dir. If it cannot be made,
// note gets the reason, and the jobs have no .git.
func (f *wholeFlags) gitFor(ctx context.Context, dir, to string, p *whole.Pipeline, note func(string)) checkout.Copy {
	depth, err := checkout.ParseDepth(cmp.Or(f.depth, p.GitDepth))
	if err != nil {
		note(fmt.Sprintf("the jobs have no .git: GIT_DEPTH: %v", err))
		return checkout.Copy{}
	}
	made, err := checkout.CopyTo(ctx, dir, to, checkout.Copying{Depth: depth, Detached: f.event.event == tagEvent})
	if err != nil {
		note(fmt.Sprintf("the jobs have no .git: %v", err))
	}
	return made
}

// changed returns the first of the flags that is given, or an empty text.
func changed(cmd *cobra.Command, names []string) string {
	if i := slices.IndexFunc(names, func(name string) bool { return cmd.Flags().Changed(name) }); i >= 0 {
		return names[i]
	}
	return ""
}

// plan returns the chosen jobs of the pipeline of src. jobName, if not empty, is the only job, with its needs.
func (f *wholeFlags) plan(
	src standalone.Source, jobName string,
) (p *whole.Pipeline, notices []string, err error) {
	if src.Format == standalone.GitHub {
		p, notices, err = githubpipeline.Read(src)
	} else {
		if f.event.event == "" {
			push := gitlabci.Variable{Name: "CI_PIPELINE_SOURCE", Value: "push"}
			src.Predefined = append(slices.Clip(src.Predefined), push)
		}
		src.Skip = f.choice.Skip
		p, err = gitlabpipeline.Read(src)
	}
	if err != nil {
		return nil, nil, err
	}
	if p.Out != "" {
		return nil, nil, fmt.Errorf("%s: no job runs: with these variables %s starts no pipeline", src.Name, p.Out)
	}
	f.choice.Job = jobName
	if err := p.Choose(f.choice); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", src.Name, err)
	}
	return p, append(notices, src.Notices...), nil
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

// checkReports checks the files for reports. They must not be inputs, nor the same as each other or as other results.
func (f *wholeFlags) checkReports(inputs []flagFile, others ...flagFile) error {
	own := []flagFile{
		{"--report-junit", f.tests}, {"--report-sarif", f.sarif}, {"--report-summary", f.summaries},
	}
	for _, r := range own {
		if r.file == "" {
			continue
		}
		if err := standalone.CheckOutputFile(r.file); err != nil {
			return fmt.Errorf("%s: %w", r.flag, err)
		}
	}
	return areApart(inputs, append(others, own...)...)
}

// checkRemarks checks the files for reports of so many pipelines.
func (f *wholeFlags) checkRemarks(pipelines int) error {
	if pipelines == 0 && f.sarif+f.summaries != "" {
		return errors.New("--report-sarif and --report-summary are for one pipeline: give its ID")
	}
	return f.checkReports(nil)
}

// config returns the configuration for a run of p, the pipeline of src, whose project is in the work directory of cfg.
func (f *wholeFlags) config(
	ctx context.Context, cfg standalone.Config, src standalone.Source, p *whole.Pipeline, show *reporter,
) (of whole.Config, err error) {
	note := func(text string) { show.say("note: " + text) }
	files, err := projectFiles(ctx, cfg.WorkDir, 0, note)
	if err != nil {
		return of, fmt.Errorf("find the files of the project: %w", err)
	}
	git := f.gitFor(ctx, cfg.WorkDir, filepath.Join(cfg.TempDir, "git"), p, note)
	stages := newStageView(p)
	show.watchLines(stages.lines)
	single := len(p.Jobs)+len(p.Left) == 1 && p.Jobs[0].Trigger == nil &&
		(p.Jobs[0].Open == nil || len(p.Jobs[0].Builds) == 1)
	of = whole.Config{
		Config: cfg, Files: files, Git: git, Slots: f.jobs, Resume: f.resume, WithTests: f.tests != "",
		Masked: map[string]string{},
		Name:   filepath.Join(cfg.WorkDir, src.Name), Say: note,
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
	for _, v := range src.Vars {
		if v.Masked {
			of.Masked[v.Key] = v.Value
		}
	}
	if base, err := os.UserCacheDir(); err == nil {
		of.CachesDir = engine.CachesOf(base, engine.LocalProject(cfg.WorkDir))
		repository := engine.LocalProject(checkout.Repository(ctx, cfg.WorkDir))
		of.StateDir = filepath.Join(base, "stepmux-pipelines", repository)
	}
	return of, nil
}

// write shows how the jobs of a pipeline ended, and writes the files of reports.
func (f *wholeFlags) write(report *whole.Report, show *reporter) (err error) {
	if show.json {
		err = writeJSON(show.out, report)
	} else {
		summarize(show, report)
	}
	if f.tests != "" {
		err = errors.Join(err, standalone.WriteFile(f.tests, report.Tests))
	}
	return errors.Join(err, f.writeRemarks(report))
}

// writeRemarks writes the files of annotations and summaries.
func (f *wholeFlags) writeRemarks(report *whole.Report) (err error) {
	if f.summaries != "" {
		err = errors.Join(err, standalone.WriteFile(f.summaries, report.Summaries()))
	}
	if f.sarif != "" {
		text, broken := report.SARIF(buildinfo.Version())
		err = errors.Join(err, broken, standalone.WriteFile(f.sarif, text))
	}
	return err
}
