package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/stepmux/stepmux/remote/standalone"
)

const jobExitHelp = `Exit codes:
  0        the job succeeded
  2        wrong usage, or steps that are not valid
  3        the system failed; the steps may be right
  124      the job took longer than --timeout
  130 143  interrupted (Ctrl-C), terminated: the job's processes got SIGTERM and, after --grace or a second signal,
           SIGKILL; steps with when: always still ran
  other    the exit code of the step that failed; 1 if it has none
A step's exit code may be one of those above. The reason in the results of --report and --output json tells them apart.`

// jobFlags are the flags of the commands that run one job.
type jobFlags struct {
	input      string // the file of the job; empty without one
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
	provenance   string
	provenanceFlags
}

func (f *jobFlags) register(fl *pflag.FlagSet) {
	f.registerCommon(fl, "run the job in this directory")
	fl.StringArrayVar(&f.masked, "mask", nil,
		"the variable of this `NAME` holds a secret: mask it in output and results; repeatable")
	fl.StringVar(&f.outputFile, "output-file", "",
		"write the trace of the job to this file: the definition, inputs and outputs of each step; secrets are masked")
	fl.StringVar(&f.provenance, "provenance", "",
		"write SLSA provenance of the job to this file, as a statement of in-toto")
	f.provenanceFlags.register(fl)
	fl.StringVar(&f.report, "report", "", "write the results to this file, in the form of --output json")
}

// registerCommon registers the flags that replay has too.
func (f *jobFlags) registerCommon(fl *pflag.FlagSet, workDir string) {
	fl.StringVar(&f.workDir, "work-dir", "", workDir)
	fl.DurationVar(&f.timeout, "timeout", 0, "end the job when it takes longer (default 24h)")
	fl.DurationVar(&f.grace, "grace", 10*time.Second,
		"time between SIGTERM and SIGKILL for processes of a job that is stopped; 0 for SIGKILL at once")
	fl.StringVar(&f.cacheDir, "cache-dir", "",
		"directory for fetched steps (default stepmux-steps in the user's cache directory)")
	fl.StringVar(&f.output, "output", "text", "text or json")
}

// graceOf returns --grace in the form of the packages.
func (f *jobFlags) graceOf() (time.Duration, error) {
	switch {
	case f.grace < 0:
		return 0, fmt.Errorf("--grace %v is negative", f.grace)
	case f.grace == 0:
		return -1, nil // no grace, for the packages
	default:
		return f.grace, nil
	}
}

// dir returns the work directory of the job.
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

// runJob runs the job of source.
func (f *jobFlags) runJob(cmd *cobra.Command, source func() (standalone.Source, error)) error {
	cfg, err := f.config()
	if err != nil {
		return usageError(err)
	}
	show, err := f.shower(cmd.OutOrStdout(), cmd.ErrOrStderr())
	if err != nil {
		return usageError(err)
	}
	j, err := f.read(source, &cfg)
	if err != nil {
		return usageError(errors.Join(err, show.end(standalone.Refused(err), f.report), f.refused(err)))
	}
	f.traceInto(&cfg, show.talk)
	for _, notice := range j.Notices {
		show.talk.Notice(notice)
	}
	cfg.Stdout, cfg.Stderr, cfg.Observe = show.stdout, show.stderr, show.talk.Observe

	ctx, abort, stop := endings(cmd.Context(), endSignals...)
	defer stop()
	report, err := standalone.Run(ctx, abort, j, cfg)
	if report != nil {
		err = errors.Join(err, show.end(report, f.report), f.writeProvenance(report, cfg))
	}
	if err != nil && signalCode(ctx) == 0 {
		return systemError(err)
	}
	if code := reportCode(ctx, report); code != 0 {
		return &exitError{code: code, err: err}
	}
	return err
}

// config checks the flags.
func (f *jobFlags) config() (cfg standalone.Config, err error) {
	if f.timeout < 0 {
		return cfg, fmt.Errorf("--timeout %v is negative", f.timeout)
	}
	cfg.Timeout, cfg.CacheDir, cfg.Version = f.timeout, f.cacheDir, version()
	if cfg.Grace, err = f.graceOf(); err != nil {
		return cfg, err
	}
	if err := f.checkProvenance(f.provenance); err != nil {
		return cfg, err
	}
	taken := map[string]string{f.input: "the job"}
	for _, flag := range []struct{ name, file string }{
		{"--output-file", f.outputFile},
		{"--report", f.report},
		{"--provenance", f.provenance},
	} {
		if flag.file == "" {
			continue
		}
		if err := standalone.CheckOutputFile(flag.file); err != nil {
			return cfg, fmt.Errorf("%s: %w", flag.name, err)
		}
		for file, what := range taken {
			if standalone.IsSameFile(file, flag.file) {
				return cfg, fmt.Errorf("%s: %s is the file of %s; name another", flag.name, flag.file, what)
			}
		}
		taken[flag.file] = flag.name
	}
	return cfg, nil
}

// traceInto sets the file of the trace. If the default file cannot be used the job runs without a trace.
func (f *jobFlags) traceInto(cfg *standalone.Config, talk *standalone.Talk) {
	file := f.outputFile
	if file == "" && f.defaultTrace != "" {
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

// writeProvenance writes the provenance of a job, if that was asked for. A job that failed may not have made the files
// of
// --subject: its provenance is about the trace.
func (f *jobFlags) writeProvenance(report *standalone.Report, cfg standalone.Config) error {
	if f.provenance == "" || report.Trace == nil {
		return nil
	}
	name := ""
	if cfg.Trace.File != "" {
		name = filepath.Base(cfg.Trace.File)
	}
	about := f.provenanceFlags
	if report.Status != "success" {
		about.subjects = nil
	}
	return about.write(f.provenance, report.Trace, name, cfg.WorkDir)
}

// refused writes the trace of a job that did not run because of err, if a trace was asked for.
func (f *jobFlags) refused(err error) error {
	if f.outputFile == "" {
		return nil
	}
	return standalone.WriteRefused(f.outputFile, err, version())
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

// jobShower shows a job: the output of its steps, messages, and the results.
type jobShower struct {
	talk           *standalone.Talk
	stdout, stderr io.Writer // for the steps
	results        io.Writer // for JSON; nil with text
}

func (f *jobFlags) shower(stdout, stderr io.Writer) (*jobShower, error) {
	s := &jobShower{talk: standalone.NewTalk(stderr, isTerminal(stderr) && os.Getenv("NO_COLOR") == "")}
	s.stdout, s.stderr = stdout, s.talk.Beside(stderr)
	switch f.output {
	case "text":
		if isTerminal(stdout) && isTerminal(stderr) {
			s.stdout = s.talk.Beside(stdout)
		}
	case "json":
		s.stdout, s.results = s.stderr, stdout
	default:
		return nil, fmt.Errorf("--output %q: use text or json", f.output)
	}
	return s, nil
}

// end shows the results. If file is not empty it also writes them there.
func (s *jobShower) end(report *standalone.Report, file string) error {
	if s.results != nil {
		data, err := report.JSON(false)
		if err == nil {
			_, err = s.results.Write(data)
		}
		if err != nil {
			return fmt.Errorf("write results: %w", err)
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
	if report == nil || report.Status != "success" {
		if code := signalCode(ctx); code != 0 {
			return code
		}
	}
	switch {
	case report == nil:
		return exitSystem
	case report.Status == "success":
		return 0
	}
	switch report.Reason {
	case standalone.Invalid:
		return exitUsage
	case standalone.TimedOut:
		return exitTimeout
	case standalone.Script:
		return scriptCode(report.ExitCode)
	default:
		return exitSystem
	}
}
