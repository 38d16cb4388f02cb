package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/remote/standalone"
	"github.com/stepmux/stepmux/remote/standalone/replay"
	"github.com/stepmux/stepmux/remote/step/fetch"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// Exit codes of replay.
const (
	exitDifferent = 1
	exitRefused   = 5
)

// maxChecks is the largest number of runs of one replay.
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
		Short: "Run the job of a trace again, and compare",
		Long: `Run the job of a trace again and compare the results. The job runs in the current directory, as with local,
but with the variables, inputs and environment of the trace. Replay does not restore the files of the project in that
directory.

Fetched steps are the same as in the trace, to the byte: from the cache or fetched by their commit or digest, wherever
the branch or tag leads now. Steps of the project, programs and stepmux itself must have the digests in the trace. If
one of them differs, the replay is refused before anything runs.

A trace has no secrets. Give them with --secret, by the name of the variable or input; an error names those that are
missing. A secret that differs from the recorded one is used, and reported as a difference.

Standard output has only the output of the steps; the differences are on standard error. With --output json standard
output has the differences as one object.

Exit codes:
  0        the job did the same
  1        the job did something different
  2        wrong usage, or a trace that is not valid or cannot be repeated
  3        the system failed; the job may be right
  5        refused: a step, a program or stepmux itself differs or is missing, and nothing was run; or the job needed a
           step that the trace does not have
  124      the job did something different, and took longer than --timeout
  130 143  interrupted (Ctrl-C), terminated, as with local`,
		Example: `  stepmux local job.yml --output-file trace.json
  stepmux replay trace.json
  stepmux replay trace.json --secret TOKEN=env:TOKEN --offline --output-file again.json
  stepmux replay trace.json --check 20 --ignore logs`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	fl := cmd.Flags()
	f.registerCommon(fl, "run the job in this directory, which has the steps of the project")
	fl.StringVar(&f.outputFile, "output-file", "",
		"write the trace of the new run to this file; with --check that of the first different run, or of the last")
	fl.StringArrayVar(&f.secrets, "secret", nil,
		"`NAME=env:VARIABLE` or NAME=file:PATH, the value of a secret that is masked in the trace; repeatable")
	fl.BoolVar(&f.offline, "offline", false,
		"ask no server for steps: if the cache does not have them, the replay is refused")
	fl.StringVar(&f.runtime, "runtime", string(replay.ExactRuntime),
		"another machine, stepmux or program is refused (exact), named and not compared (warn), or not compared (ignore)")
	fl.BoolVar(&f.allowChanged, "allow-changed-components", false,
		"run also if steps of the project were changed; the differences tell")
	fl.StringArrayVar(&f.ignore, "ignore", nil, "do not compare these: logs; repeatable")
	fl.IntVar(&f.check, "check", 1, "run this many times, and count each difference")
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
	defer func() { _ = store.Close() }() // never fails
	plan.Store = store

	ctx, abort, stop := endings(cmd.Context(), endSignals...)
	defer stop()
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

// plan returns the configuration of the replay from the flags.
func (f *replayFlags) plan() (cfg replay.Config, ignore trace.Ignore, err error) {
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
			return nil, errors.New("--secret: write NAME=env:VARIABLE or NAME=file:PATH; the value itself must not be on the " +
				"command line")
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
