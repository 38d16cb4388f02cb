package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/internal/endsignal"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/githubpipeline"
	"github.com/stepmux/stepmux/internal/standalone/gitlabci"
	"github.com/stepmux/stepmux/internal/standalone/gitlabpipeline"
	"github.com/stepmux/stepmux/internal/standalone/whole"
	"github.com/stepmux/stepmux/internal/termtext"
)

// wholeFlags choose the jobs of a whole pipeline.
type wholeFlags struct {
	jobs   int
	list   bool
	needs  bool
	event  string
	choice whole.Choice
}

// wholeNames are the names of wholeFlags.
var wholeNames = []string{"jobs", "list", "needs", "manual", "stage", "skip", "wait-delayed"}

func (f *wholeFlags) register(fl *pflag.FlagSet) {
	fl.IntVar(&f.jobs, "jobs", runtime.GOMAXPROCS(0), "run so many jobs of a pipeline at once (default: processors)")
	fl.Lookup("jobs").DefValue = ""
	fl.BoolVar(&f.list, "list", false, "list the jobs of the pipeline, with their needs, and those that it does not "+
		"have; run nothing")
	fl.BoolVar(&f.needs, "needs", false, "with --job-name: also run the jobs that the job needs")
	fl.StringArrayVar(&f.choice.Manual, "manual", nil, "also run this manual `JOB`; repeatable")
	fl.StringArrayVar(&f.choice.Stages, "stage", nil, "run only the jobs of this `STAGE`; repeatable")
	fl.StringArrayVar(&f.choice.Skip, "skip", nil, "leave out this `JOB`; repeatable")
	fl.BoolVar(&f.choice.WaitDelayed, "wait-delayed", false, "let delayed jobs wait for their time (start_in)")
	fl.StringVar(&f.event, "event", "", "the `NAME` of the event that starts a workflow, with its parts from the commit, "+
		"or NAME=FILE with its payload in JSON (default: push, or else one that starts it)")
	grouped(fl, pipelineGroup)
}

// isWhole reports whether the flags ask for the whole pipeline of src.
func (f *localFlags) isWhole(cmd *cobra.Command, src standalone.Source) (bool, error) {
	if err := f.checkWorkflowFlags(cmd, src); err != nil {
		return false, err
	}
	isGiven := func(name string) bool { return cmd.Flags().Changed(name) }
	given := slices.IndexFunc(wholeNames, isGiven)
	switch {
	case f.whole.jobs < 1:
		return false, errors.New("--jobs: use a number above 0")
	case f.whole.needs && f.jobName == "":
		return false, errors.New("--needs: name the job with --job-name")
	case f.jobName != "" && !f.whole.needs && given >= 0:
		return false, fmt.Errorf("--%s is for a whole pipeline; with --job-name it needs --needs", wholeNames[given])
	case f.jobName != "" || len(f.matrix) > 0:
		return f.whole.needs, nil
	case src.Format == standalone.GitHub:
		return given >= 0 || !slices.ContainsFunc(ofOneJob, isGiven), nil
	default:
		return given >= 0 || standalone.IsWhole(src), nil
	}
}

// ofOneJob are flags that have no meaning for a whole pipeline.
var ofOneJob = []string{"output-file", "provenance", "report", "matrix", "image", "in-image", "container"}

// plan returns the chosen jobs of the pipeline of src.
func (f *localFlags) plan(
	cmd *cobra.Command, src standalone.Source,
) (p *whole.Pipeline, notices []string, err error) {
	for _, name := range ofOneJob {
		if flag := cmd.Flags().Lookup(name); flag != nil && flag.Changed {
			return nil, nil, fmt.Errorf("--%s is for one job; choose it with --job-name, without --needs", name)
		}
	}
	if src.Format == standalone.GitHub {
		p, notices, err = githubpipeline.Read(src)
	} else {
		src.Predefined = append(slices.Clip(src.Predefined), gitlabci.Variable{Name: "CI_PIPELINE_SOURCE", Value: "push"})
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
	return p, notices, nil
}

// runWhole runs the pipeline of src, or lists its jobs.
func (f *localFlags) runWhole(cmd *cobra.Command, src standalone.Source) (err error) {
	cfg, err := f.config(cmd.Context())
	if err != nil {
		return err
	}
	if cfg.WorkDir, err = f.dir(); err != nil {
		return err
	}
	src.WorkDir = cfg.WorkDir
	p, notices, err := f.plan(cmd, src)
	if err != nil {
		return err
	}
	if f.whole.list {
		return listJobs(cmd.OutOrStdout(), p, f.output == "json")
	}
	if len(p.Jobs) == 0 {
		return fmt.Errorf("%s: no job runs; --list says why", src.Name)
	}
	if err := whole.Check(p); err != nil {
		return fmt.Errorf("%s: %w", src.Name, err)
	}
	show := f.shower(cmd, &cfg)
	board := &board{to: cfg.Stdout, talk: show.talk}
	for _, notice := range notices {
		board.note(notice)
	}
	ctx, abort, stop := endings(cmd.Context(), endsignal.All...)
	defer stop()
	files, err := projectFiles(ctx, cfg.WorkDir, 0, board.note)
	if err != nil {
		return systemError(fmt.Errorf("find the files of the project: %w", err))
	}
	temp, err := makeTempDir(ctx, "pipeline-")
	if err != nil {
		return systemError(err)
	}
	defer func() { err = errors.Join(err, temp.remove()) }()
	cfg.TempDir = temp.path
	report, err := whole.Run(ctx, abort, p, whole.Config{
		Config: cfg, Files: files, Slots: f.whole.jobs, Output: board.output, Say: board.note,
	})
	if report == nil {
		return systemError(err)
	}
	if show.results != nil {
		err = errors.Join(err, writeJSON(show.results, report))
	} else {
		summarize(show.talk, report)
	}
	return withCode(wholeCode(ctx, report, err), err)
}

// wholeCode returns the exit code of a pipeline.
func wholeCode(ctx context.Context, report *whole.Report, err error) int {
	switch code := endsignal.Code(ctx); {
	case report.Status == whole.Success && err == nil:
		return 0
	case report.Status == whole.Failure:
		return scriptCode(report.ExitCode)
	case code != 0:
		return code
	case err == nil: // a job took the place of another one
		return 1
	default:
		return exitSystem
	}
}

// board shows the output of several jobs, each line with the name of its job.
type board struct {
	mu   sync.Mutex // guards the following
	to   io.Writer
	talk *standalone.Talk
}

// note shows a notice.
func (b *board) note(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.talk.Notice(text)
}

// output returns the writers for a job.
func (b *board) output(job string) (stdout, stderr io.Writer, end func()) {
	prefix := "[" + termtext.Line(job) + "] "
	out, errs := &jobLines{board: b, prefix: prefix}, &jobLines{board: b, prefix: prefix}
	return out, errs, func() {
		_ = out.flush()
		_ = errs.flush()
	}
}

// maxPart bounds a line that is not yet complete, in bytes.
const maxPart = 64 << 10

// jobLines writes whole lines. A job has one for each of its streams, which a single goroutine writes.
type jobLines struct {
	*board
	prefix string
	part   []byte
}

// Write writes the lines that p completes.
func (l *jobLines) Write(p []byte) (int, error) {
	l.part = append(l.part, p...)
	end := bytes.LastIndexByte(l.part, '\n') + 1
	if end == 0 && len(l.part) < maxPart {
		return len(p), nil
	}
	if end == 0 {
		return len(p), l.flush()
	}
	rest := bytes.Clone(l.part[end:])
	l.part = l.part[:end]
	err := l.flush()
	l.part = rest
	return len(p), err
}

// flush writes everything that is left, as whole lines.
func (l *jobLines) flush() error {
	if len(l.part) == 0 {
		return nil
	}
	var text bytes.Buffer
	for line := range bytes.Lines(l.part) {
		text.WriteString(l.prefix)
		text.Write(bytes.TrimSuffix(line, []byte("\n")))
		text.WriteByte('\n')
	}
	l.part = nil
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.to.Write(text.Bytes())
	return err
}

// summarize shows how the jobs of a pipeline ended.
func summarize(talk *standalone.Talk, r *whole.Report) {
	for _, j := range r.Jobs {
		text := fmt.Sprintf("%s%-24s %s", stageColumn(j.Stage), j.Name, j.Status)
		switch {
		case j.Why != "" && j.Why != j.Status:
			text += ": " + j.Why
		case j.ExitCode != nil && *j.ExitCode != 0:
			text += fmt.Sprintf(": exit code %d", *j.ExitCode)
		}
		if j.Duration > 0 {
			text += fmt.Sprintf(" (%.1fs)", j.Duration)
		}
		if j.Attempts > 1 {
			text += fmt.Sprintf(", %d attempts", j.Attempts)
		}
		talk.Say(text)
	}
	seconds := func(s float64) time.Duration {
		return time.Duration(s * float64(time.Second)).Round(100 * time.Millisecond)
	}
	talk.Say(fmt.Sprintf("pipeline: %s in %v; the jobs took %v; critical path: %s", r.Status, seconds(r.Wall),
		seconds(r.Busy), strings.Join(r.CriticalPath, ", ")))
}

// stageColumn returns the column with the stage of a job. Jobs of a workflow have none.
func stageColumn(stage string) string {
	if stage == "" {
		return ""
	}
	return fmt.Sprintf("%-10s ", stage)
}

// listed is a job in the list of a pipeline.
type listed struct {
	Name   string   `json:"name"`
	Stage  string   `json:"stage,omitempty"`
	When   string   `json:"when,omitempty"`
	Needs  []string `json:"needs"`            // null: all earlier stages
	Builds []string `json:"builds,omitempty"` // of a workflow's job with a matrix that is known
	In     bool     `json:"in_pipeline"`
	WhyOut string   `json:"why,omitempty"`
}

// listJobs writes the jobs of a pipeline.
func listJobs(w io.Writer, p *whole.Pipeline, asJSON bool) error {
	var all []listed
	for i, j := range p.Jobs {
		one := listed{Name: j.Name, Stage: j.Stage, When: j.When, In: true}
		if len(j.Builds) > 1 {
			one.Builds = j.Builds
		}
		if n := p.Graph.Nodes[i]; n.After == 0 {
			one.Needs = []string{}
			for _, need := range n.Needs {
				one.Needs = append(one.Needs, need.Name)
			}
		}
		all = append(all, one)
	}
	for _, l := range p.Left {
		all = append(all, listed{Name: l.Name, Stage: l.Stage, WhyOut: l.Why})
	}
	if asJSON {
		return writeJSON(w, all)
	}
	var text strings.Builder
	for _, j := range all {
		about := j.When
		switch {
		case !j.In:
			about = "not in the pipeline: " + j.WhyOut
		case j.Needs != nil:
			about += ", needs " + strings.ReplaceAll(fmt.Sprintf("%q", j.Needs), `" "`, `", "`)
			if len(j.Needs) == 0 {
				about = j.When + ", needs nothing"
			}
		}
		if j.When == "" {
			about = strings.TrimPrefix(about, ", ")
		}
		if len(j.Builds) > 0 {
			about += fmt.Sprintf(", %d builds", len(j.Builds))
		}
		fmt.Fprintln(&text, termtext.Line(fmt.Sprintf("%s%-24s %s", stageColumn(j.Stage), j.Name, about)))
	}
	_, err := io.WriteString(w, text.String())
	return err
}
