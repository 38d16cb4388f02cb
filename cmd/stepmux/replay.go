package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/remote/standalone"
	"github.com/stepmux/stepmux/remote/standalone/replay"
	"github.com/stepmux/stepmux/remote/step/fetch"
	"github.com/stepmux/stepmux/remote/step/trace"
	"github.com/stepmux/stepmux/remote/step/trace/inspect"
)

// Exit codes of replay.
const (
	exitDifferent = 1
	exitRefused   = 5
)

// maxChecks is the most runs of one replay.
const maxChecks = 10_000

type replayFlags struct {
	jobFlags
	secrets      []string
	offline      bool
	runtime      string
	allowChanged bool
	ignore       []string
	check        int
}

func newReplayCommand() *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay [flags] TRACE",
		Short: "Run again what a trace tells of, and compare",
		Long: `Run the job of a trace once more and compare what came of it. It runs in the current directory, as local does, with
the variables, inputs and environment of the trace, and not those of now. What is in that directory is as it is: replay
puts no files of the project back.

Steps that were fetched are those of the trace, to the byte: from the cache or, if they are not there, fetched by their
commit or digest, whatever became of the branch or tag. Steps of the project, programs and stepmux itself must have the
digests they had. What is not as it was is refused before anything runs.

A trace has no secrets. They are given with --secret, each by the name of its variable or input; the message that some
are missing names them. One that is not the same is used, and reported as different.

Standard output has what the steps write there, and nothing else; the differences are on standard error. With --output
json standard output has them as one object.

Exit codes:
  0        it was the same
  1        it was different
  2        wrong usage, or a trace that is not valid or cannot be repeated
  3        the system failed; it says nothing about the job
  5        refused: a step, a program or stepmux itself is not to be had as it was, and nothing was run; or the job
           came to need a step that the trace does not have
  124      it was different, and took longer than --timeout
  130 143  interrupted (Ctrl-C), terminated, as with local`,
		Example: `  stepmux local job.yml --output-file trace.json
  stepmux replay trace.json
  stepmux replay trace.json --secret TOKEN=env:TOKEN --offline --output-file again.json
  stepmux replay trace.json --check 20 --ignore logs`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.workDir, "work-dir", "", "run the job in this directory, where the steps of the project are")
	fl.DurationVar(&f.timeout, "timeout", 0, "end the job when it takes longer (default 24h)")
	fl.DurationVar(&f.grace, "grace", defaultJobGrace,
		"time between SIGTERM and SIGKILL for processes of a job that is stopped; 0 for SIGKILL at once")
	fl.StringVar(&f.cacheDir, "cache-dir", "",
		"where steps that were fetched are kept (default stepmux-steps in the user's cache directory)")
	fl.StringVar(&f.output, "output", "text", "text or json")
	fl.StringVar(&f.outputFile, "output-file", "",
		"write the trace of the new run to this file; with --check that of the first that was different, or of the last")
	fl.StringArrayVar(&f.secrets, "secret", nil,
		"`NAME=env:VARIABLE` or NAME=file:PATH, the value of what is masked in the trace; repeatable")
	fl.BoolVar(&f.offline, "offline", false, "ask no server for steps: they are in the cache, or the replay is refused")
	fl.StringVar(&f.runtime, "runtime", string(replay.ExactRuntime),
		"another machine, stepmux or program is refused (exact), named and not compared (warn), or not compared (ignore)")
	fl.BoolVar(&f.allowChanged, "allow-changed-components", false,
		"run also if steps of the project were changed; the differences tell")
	fl.StringArrayVar(&f.ignore, "ignore", nil, "do not compare these: logs; repeatable")
	fl.IntVar(&f.check, "check", 1, "run so many times, and tell how often each difference was there")
	return cmd
}

func (f *replayFlags) run(cmd *cobra.Command, file string) error {
	f.input = file
	cfg, err := f.config()
	if err != nil {
		return usageError(err)
	}
	plan, ignore, err := f.plan()
	if err != nil {
		return usageError(err)
	}
	show, err := f.shower(cmd.OutOrStdout(), cmd.ErrOrStderr())
	if err != nil {
		return usageError(err)
	}
	t, err := trace.Read(file)
	if err != nil {
		return usageError(err)
	}
	store, err := fetch.New(fetch.Config{Dir: f.cacheDir, Offline: f.offline})
	if err != nil {
		return systemError(err)
	}
	defer func() { _ = store.Close() }() // it has given up all it holds by then
	plan.Store = store

	// Who stops reading our output shall not keep us from cleaning up.
	// (Not ignored, but handled: what we start would inherit that.)
	brokenPipe := make(chan os.Signal, 1)
	signal.Notify(brokenPipe, syscall.SIGPIPE)
	defer signal.Stop(brokenPipe)
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	abort, stopAbort := untilSecondSignal(ctx)
	defer stopAbort()

	p, err := replay.Prepare(ctx, t, plan)
	if err != nil {
		return replayError(ctx, err)
	}
	defer p.Close()
	for _, notice := range p.Job.Notices {
		show.talk.Notice(notice)
	}
	cfg.Stdout, cfg.Stderr, cfg.Observe = show.stdout, show.stderr, show.talk.Observe
	cfg.Trace = &standalone.Trace{File: f.outputFile}
	result, err := p.Run(ctx, abort, t, f.check, ignore, cfg, func(r *standalone.Report) {
		if show.results == nil {
			show.talk.End(r)
		}
	})
	if err == nil {
		err = showReplay(show, result)
	}
	if code := signalCode(ctx); code != 0 {
		return &exitError{code: code, err: err}
	}
	if err != nil {
		return replayError(ctx, err)
	}
	return replayOutcome(result)
}

// plan returns what the flags say about how to repeat.
func (f *replayFlags) plan() (cfg replay.Config, ignore inspect.Ignore, err error) {
	cfg = replay.Config{AllowChanged: f.allowChanged, Version: version()}
	if cfg.WorkDir, err = f.dir(); err != nil {
		return cfg, ignore, err
	}
	if cfg.Runtime, err = replay.ParseRuntime(f.runtime); err != nil {
		return cfg, ignore, fmt.Errorf("--runtime: %w", err)
	}
	ignore.Runtime = cfg.Runtime != replay.ExactRuntime
	if ignore.Logs, err = ignoresLogs(f.ignore); err != nil {
		return cfg, ignore, err
	}
	if f.check < 1 || f.check > maxChecks {
		return cfg, ignore, fmt.Errorf("--check %d: use 1 to %d", f.check, maxChecks)
	}
	cfg.Secrets, err = readSecrets(f.secrets)
	return cfg, ignore, err
}

// ignoresLogs reads --ignore.
func ignoresLogs(list []string) (logs bool, err error) {
	for _, what := range list {
		if what != "logs" {
			return false, fmt.Errorf("--ignore %.40q: use logs", what)
		}
		logs = true
	}
	return logs, nil
}

// readSecrets reads the values of given, each NAME=env:VARIABLE or NAME=file:PATH.
func readSecrets(given []string) (map[string]string, error) {
	secrets := make(map[string]string, len(given))
	for _, text := range given {
		name, from, _ := strings.Cut(text, "=")
		kind, where, found := strings.Cut(from, ":")
		switch {
		case name == "" || !found || where == "":
			return nil, errors.New("--secret: write NAME=env:VARIABLE or NAME=file:PATH; the value itself is for nobody to " +
				"see here")
		case kind == "env":
			value, set := os.LookupEnv(where)
			if !set {
				return nil, fmt.Errorf("--secret %s: the variable %s is not in the environment", name, where)
			}
			secrets[name] = value
		case kind == "file":
			data, err := standalone.ReadFile(where, os.Stdin)
			if err != nil {
				return nil, fmt.Errorf("--secret %s: %w", name, err)
			}
			secrets[name] = string(data)
		default:
			return nil, fmt.Errorf("--secret %s: a value comes from env:VARIABLE or file:PATH", name)
		}
	}
	return secrets, nil
}

// replayError gives err its exit code.
func replayError(ctx context.Context, err error) error {
	refused, missing := (*replay.RefusedError)(nil), (*replay.MissingError)(nil)
	switch code := signalCode(ctx); {
	case code != 0:
		return &exitError{code: code, err: err}
	case errors.As(err, &refused):
		return &exitError{code: exitRefused, err: err}
	case errors.As(err, &missing), errors.Is(err, replay.ErrTrace):
		return usageError(err)
	default:
		return systemError(err)
	}
}

// showReplay shows how a replay compares with its trace.
func showReplay(show *jobShower, r *replay.Result) error {
	if show.results != nil {
		data, err := json.Marshal(r)
		if err == nil {
			_, err = show.results.Write(append(data, '\n'))
		}
		if err != nil {
			return fmt.Errorf("write results: %w", err)
		}
		return nil
	}
	for _, d := range r.Differences {
		text := d.String()
		if r.Runs > 1 {
			text += fmt.Sprintf(" (in %d of %d runs)", d.Runs, r.Runs)
		}
		show.talk.Say(text)
	}
	if r.More > 0 {
		show.talk.Say(fmt.Sprintf("and %d more differences", r.More))
	}
	if r.Unknown > 0 {
		show.talk.Notice(fmt.Sprintf("%d masked values could not be compared", r.Unknown))
	}
	text := "replay: the same as the trace"
	if !r.Same {
		text = "replay: different from the trace"
	}
	if r.Runs > 1 {
		text += fmt.Sprintf(" (%d runs)", r.Runs)
	}
	show.talk.Say(text)
	return nil
}

// replayOutcome returns the exit code of a replay as an error.
func replayOutcome(r *replay.Result) error {
	switch {
	case r.Same:
		return nil
	case r.Reason == standalone.System:
		return &exitError{code: exitSystem}
	case r.Reason == standalone.TimedOut:
		return &exitError{code: exitTimeout}
	default:
		return &exitError{code: exitDifferent}
	}
}
