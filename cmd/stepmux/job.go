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
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/stepmux/stepmux/internal/buildinfo"
	"github.com/stepmux/stepmux/internal/endsignal"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/remote/commands/doors"
	"github.com/stepmux/stepmux/remote/step/action"
)

const jobExitHelp = `Exit codes:
  0        the job succeeded
  2        wrong usage, or steps that are not valid
  3        the system failed; the steps may be right
  124      the job took longer than --timeout
  125      of a whole file, a newer job or run took the place of one, and nothing failed
  129 130 143  ended by a signal: hang-up, Ctrl-C (SIGINT), SIGTERM. The job's processes got SIGTERM and, after --grace
           or a second signal, SIGKILL; steps with when: always still ran
  other    the exit code of the step that failed; 1 if it has none
A step's exit code may be one of those above. The reason in the results of --report and --output json tells them apart.`

// maxTimeout is the time after which each job ends: job.Config.MaxRunTime.
const maxTimeout = 24 * time.Hour

// jobFlags are the flags of the commands that run one job.
type jobFlags struct {
	input      string // the file of the job; empty if there is no file
	workDir    string
	masked     []string
	timeout    time.Duration
	grace      time.Duration
	output     string
	outputFile string // for the trace
	report     string
	// defaultTrace is the default file of the trace, in the work directory; empty for no trace.
	defaultTrace string
	cacheDir     string
	actions      action.Config
	services     *jobServices // may be nil
	provenance   string
	policyFlags
	provenanceFlags
}

func (f *jobFlags) register(fl *pflag.FlagSet) {
	f.registerCommon(fl, "run the job in this directory")
	f.registerEnvironment(fl, "this command's")
	f.registerStrict(fl)
	maskFlag(fl, &f.masked, "results")
	grouped(fl, jobGroup)
	fl.StringVar(&f.outputFile, "output-file", "",
		"write the trace of the job to this `FILE`: the definition, inputs and outputs of each step; secrets are masked")
	fileFlag(fl, &f.provenance, "provenance",
		"write SLSA provenance of the job to this `FILE`, as a statement of in-toto")
	f.provenanceFlags.register(fl)
	fileFlag(fl, &f.report, "report", "write the results to this `FILE`, in the form of --output json")
	grouped(fl, fileGroup)
}

// varUsage is the help of --var.
const varUsage = "`NAME=VALUE`, a job variable; NAME alone takes the value in the environment; repeatable"

// maskFlag adds --mask. where names the places that it masks besides output.
func maskFlag(fl *pflag.FlagSet, to *[]string, where string) {
	fl.StringArrayVar(to, "mask", nil, "the variable of this `NAME` holds a secret: mask its value in output and "+
		where+"; variables with the tokens of GitLab and GitHub are always masked; repeatable")
}

// registerCommon registers the flags that replay has too.
func (f *jobFlags) registerCommon(fl *pflag.FlagSet, workDir string) {
	fl.StringVar(&f.workDir, "work-dir", "", workDir)
	fl.StringVar(&f.cacheDir, "cache-dir", "",
		"directory for fetched steps (default stepmux-steps in the user's cache directory)")
	grouped(fl, fileGroup)
	boundedTimeFlag(fl, &f.timeout, "timeout", "end the job when it takes longer than this `time`, at most 24h (default "+
		"24h)", 0, maxTimeout)
	f.grace = 10 * time.Second
	timeFlag(fl, &f.grace, "grace",
		"`time` between SIGTERM and SIGKILL for processes of a job that is stopped; 0 for SIGKILL at once")
	f.registerUnsafeExports(fl)
	grouped(fl, jobGroup)
	doors.ActionFlags(fl, &f.actions)
	grouped(fl, actionGroup)
	outputFlag(fl, &f.output, "text or json")
}

// dir returns the absolute path of the job's work directory.
func (f *jobFlags) dir() (string, error) {
	dir, err := filepath.Abs(f.workDir)
	if err != nil {
		return "", fmt.Errorf("find the current directory: %w", err)
	}
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a directory", dir)
	}
	if err != nil {
		return "", fmt.Errorf("work directory: %w", err)
	}
	return dir, nil
}

// jobPlace is where a job runs. The zero value is this machine.
type jobPlace struct {
	// ready is called with the job once it is read. If it returns an error, the job does not run. May be nil.
	ready func(*standalone.Job) error
	// run runs the job. If nil, standalone.Run does.
	run func(ctx, abort context.Context, j *standalone.Job, cfg standalone.Config) (*standalone.Report, error)
}

// runJob runs the job of source at a place.
func (f *jobFlags) runJob(cmd *cobra.Command, source func() (standalone.Source, error), at jobPlace) error {
	if at.run == nil {
		at.run = standalone.Run
	}
	cfg, err := f.config(cmd.Context())
	if err != nil {
		return err
	}
	show := f.shower(cmd, &cfg)
	j, err := f.read(source, &cfg)
	if err == nil {
		err = f.checkScripts(j.Warnings)
	}
	if err == nil && at.ready != nil {
		err = at.ready(j)
	}
	f.traceInto(&cfg, show.talk)
	if err != nil {
		refused := errors.Join(err, show.end(standalone.Refused(err), f.report))
		if cfg.Trace != nil && cfg.Trace.File != "" {
			refused = errors.Join(refused, standalone.WriteRefused(cfg.Trace.File, err, buildinfo.Version()))
		}
		return refused
	}
	show.notices(j)
	ctx, abort, stop := endings(cmd.Context(), endsignal.All...)
	defer stop()
	report, err := at.run(ctx, abort, j, cfg)
	if errors.Is(err, standalone.ErrStuck) {
		show.talk, err = standalone.NewTalk(io.Discard, false), nil // the reader takes no message, either
	}
	if report != nil {
		report.Warnings = j.Warnings
		err = errors.Join(err, show.end(report, f.report), f.writeProvenance(report, cfg))
	}
	if err != nil && endsignal.Code(ctx) == 0 {
		return systemError(err)
	}
	return withCode(reportCode(ctx, report), err)
}

// config checks the flags and returns the configuration.
func (f *jobFlags) config(ctx context.Context) (cfg standalone.Config, err error) {
	cfg = standalone.Config{
		Timeout: f.timeout, Grace: f.grace, CacheDir: f.cacheDir, Actions: f.actions, Version: buildinfo.Version(),
		Policy: f.policy,
	}
	if f.services != nil {
		cfg.Services = f.services.ofJobHere
	}
	if err := f.check(); err != nil {
		return cfg, err
	}
	if _, err := f.actions.Mirrors(); err != nil {
		return cfg, err
	}
	if err := f.checkProvenance(ctx, f.provenance); err != nil {
		return cfg, err
	}
	results := []flagFile{{"--output-file", f.outputFile}, {"--report", f.report}, {"--provenance", f.provenance}}
	for _, of := range results {
		if of.file == "" {
			continue
		}
		if err := standalone.CheckOutputFile(of.file); err != nil {
			return cfg, fmt.Errorf("%s: %w", of.flag, err)
		}
	}
	return cfg, areApart([]flagFile{{"the job", f.input}}, results...)
}

// flagFile is the file that a flag or an argument names.
type flagFile struct{ flag, file string }

// areApart returns an error if a result would replace an input or another result.
func areApart(inputs []flagFile, results ...flagFile) error {
	for i, of := range results {
		for _, other := range slices.Concat(inputs, results[:i]) {
			if standalone.IsSameFile(other.file, of.file) {
				return fmt.Errorf("%s: %s is the file of %s; name another", of.flag, of.file, other.flag)
			}
		}
	}
	return nil
}

// traceInto sets the file of the trace. If the default file cannot be used, the job runs without a trace. So it does if
// cfg has no work directory, because there is no text of a job.
func (f *jobFlags) traceInto(cfg *standalone.Config, talk *standalone.Talk) {
	file := f.outputFile
	if file == "" && f.defaultTrace != "" && cfg.WorkDir != "" {
		file = filepath.Join(cfg.WorkDir, f.defaultTrace)
		if err := standalone.CheckTraceFile(file); err != nil {
			talk.Notice(fmt.Sprintf("no trace is written: %v; name another file with --output-file", err))
			file = ""
		}
	}
	if file != "" || f.provenance != "" {
		cfg.Trace = &standalone.Trace{File: file}
	}
}

// writeProvenance writes the provenance of a job if it was requested. A failed job may not have made the files of
// --subject, so its provenance is about the trace only.
func (f *jobFlags) writeProvenance(report *standalone.Report, cfg standalone.Config) error {
	if f.provenance == "" || report.Trace == nil {
		return nil
	}
	about := f.provenanceFlags
	if report.Status != "success" {
		about.subjects = nil
	}
	return about.write(f.provenance, report.Trace, filepath.Base(cmp.Or(cfg.Trace.File, "trace.json")), cfg.WorkDir)
}

// read reads the job, and sets its work directory.
func (f *jobFlags) read(source func() (standalone.Source, error), cfg *standalone.Config) (*standalone.Job, error) {
	src, err := source()
	if err != nil {
		return nil, err
	}
	if cfg.WorkDir, err = f.dir(); err != nil {
		return nil, err
	}
	src.WorkDir = cfg.WorkDir
	return standalone.Read(src)
}

// jobShower shows messages about a job and its results.
type jobShower struct {
	talk    *standalone.Talk
	results io.Writer // for JSON; nil with text
}

// shower returns a jobShower, and directs the output of the steps in cfg.
func (f *jobFlags) shower(cmd *cobra.Command, cfg *standalone.Config) *jobShower {
	stdout, stderr := cmd.OutOrStdout(), cmd.ErrOrStderr()
	s := &jobShower{talk: standalone.NewTalk(stderr, isTerminal(stderr) && os.Getenv("NO_COLOR") == "")}
	cfg.Stdout, cfg.Stderr, cfg.Observe = stdout, s.talk.Beside(stderr), s.talk.Observe
	if f.output == "json" {
		cfg.Stdout, s.results = cfg.Stderr, stdout
	} else if isTerminal(stdout) && isTerminal(stderr) {
		cfg.Stdout = s.talk.Beside(stdout)
	}
	return s
}

func (s *jobShower) notices(j *standalone.Job) {
	for _, notice := range slices.Concat(j.Notices, standalone.WarningsToTell(j.Warnings)) {
		s.talk.Notice(notice)
	}
}

// end shows the results, and also writes them to file unless that is empty.
func (s *jobShower) end(report *standalone.Report, file string) error {
	if s.results != nil {
		if err := writeJSON(s.results, report); err != nil {
			return err
		}
	} else if report.Reason != standalone.Invalid || len(report.Steps) > 0 {
		s.talk.End(report)
	}
	if file != "" {
		return report.WriteFile(file)
	}
	return nil
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
}

// reportCode returns the exit code of a job.
func reportCode(ctx context.Context, report *standalone.Report) int {
	code := endsignal.Code(ctx)
	switch {
	case report != nil && report.Status == "success":
		return 0
	case code != 0:
		return code
	case report == nil:
		return exitSystem
	case report.Reason == standalone.Invalid:
		return exitUsage
	case report.Reason == standalone.TimedOut:
		return exitTimeout
	case report.Reason == standalone.Script:
		return scriptCode(*cmp.Or(report.ExitCode, new(0)))
	default:
		return exitSystem
	}
}
