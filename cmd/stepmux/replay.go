package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/internal/buildinfo"
	"github.com/stepmux/stepmux/internal/endsignal"
	"github.com/stepmux/stepmux/internal/plural"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/inspect"
	"github.com/stepmux/stepmux/internal/standalone/replay"
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
	runtime      replay.Runtime
	allowChanged bool
	ignore       string
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

Fetched steps have the same bytes as in the trace: they come from the cache or are fetched by their commit or digest,
even if the branch or tag has moved. Steps of the project, programs and stepmux itself must have the digests in the
trace. If one of them differs, the replay is refused before anything runs.

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
  129 130 143  ended by a signal, as with local`,
		Example: `  stepmux local job.yml --output-file trace.json
  stepmux replay trace.json
  stepmux replay trace.json --secret TOKEN=env:TOKEN --offline --output-file again.json
  stepmux replay trace.json --check 20 --ignore logs`,
		Args: arguments("TRACE"),
		RunE: f.run,
	}
	fl := cmd.Flags()
	f.registerCommon(fl, "run the job in this directory, which has the steps of the project")
	fl.StringVar(&f.outputFile, "output-file", "",
		"write the trace of the new run to this file; with --check that of the first different run, or of the last")
	grouped(fl, fileGroup)
	fl.StringArrayVar(&f.secrets, "secret", nil,
		"`NAME=env:VARIABLE` or NAME=file:PATH, the value of a secret that is masked in the trace; repeatable")
	fl.BoolVar(&f.offline, "offline", false,
		"do not ask servers for steps: if the cache does not have one, the replay is refused")
	f.runtime = replay.ExactRuntime
	choiceFlag(fl, &f.runtime, "runtime", "on another machine, or with another stepmux or program: refuse to run "+
		"(exact), run with a warning (warn), or run (ignore)", "exact", "warn", "ignore")
	fl.BoolVar(&f.allowChanged, "allow-changed-components", false,
		"run even if steps of the project were changed; the differences list them")
	choiceFlag(fl, &f.ignore, "ignore", "do not compare these: logs; repeatable", "logs")
	fl.IntVar(&f.check, "check", 1, "run this many times, and count each difference")
	grouped(fl, jobGroup)
	return cmd
}

func (f *replayFlags) run(cmd *cobra.Command, args []string) error {
	f.input = args[0]
	cfg, err := f.config(cmd.Context())
	if err != nil {
		return err
	}
	if cfg.WorkDir, err = f.dir(); err != nil {
		return err
	}
	if f.check < 1 || f.check > maxChecks {
		return fmt.Errorf("--check %d: use 1 to %d", f.check, maxChecks)
	}
	secrets, err := readSecrets(f.secrets)
	if err != nil {
		return err
	}
	show := f.shower(cmd, &cfg)
	t, err := trace.Read(f.input)
	if err != nil {
		return err
	}
	mirrors, err := f.actions.Mirrors()
	if err != nil {
		return err
	}
	store, err := fetch.New(fetch.Config{Dir: f.cacheDir, Offline: f.offline, Mirrors: mirrors})
	if err != nil {
		return systemError(err)
	}
	defer func() { _ = store.Close() }() // never fails

	ctx, abort, stop := endings(cmd.Context(), endsignal.All...)
	defer stop()
	p, err := replay.Prepare(ctx, t, replay.Config{
		WorkDir: cfg.WorkDir, Runtime: f.runtime, Secrets: secrets, AllowChanged: f.allowChanged, Store: store,
		Version: buildinfo.Version(), VMsEnd: vmsEndSum,
	})
	if err != nil {
		return replayError(ctx, err)
	}
	defer p.Close()
	show.notices(p.Job)
	cfg.Trace = &standalone.Trace{File: f.outputFile}
	ignore := inspect.Ignore{Logs: f.ignore == "logs", Runtime: f.runtime != replay.ExactRuntime}
	result, err := p.Run(ctx, abort, t, f.check, ignore, cfg, func(r *standalone.Report) {
		if show.results == nil {
			show.talk.End(r)
		}
	})
	if err == nil && show.results != nil {
		err = writeJSON(show.results, result)
	}
	if err != nil {
		return replayError(ctx, err)
	}
	if show.results == nil {
		showReplay(show.talk, result)
	}
	return withCode(cmp.Or(endsignal.Code(ctx), replayCode(result)), nil)
}

// readSecrets reads the values of given, each NAME=env:VARIABLE or NAME=file:PATH.
func readSecrets(given []string) (map[string]string, error) {
	secrets := make(map[string]string, len(given))
	for _, text := range given {
		name, from, _ := strings.Cut(text, "=")
		kind, where, found := strings.Cut(from, ":")
		if name == "" || !found || where == "" {
			return nil, errors.New("--secret: write NAME=env:VARIABLE or NAME=file:PATH; the value itself must not be on the " +
				"command line")
		}
		var err error
		switch kind {
		case "env":
			value, set := os.LookupEnv(where)
			if !set {
				err = fmt.Errorf("the variable %s is not in the environment", where)
			}
			secrets[name] = value
		case "file":
			var data []byte
			data, err = standalone.ReadFile(where, os.Stdin)
			secrets[name] = string(data)
		default:
			err = errors.New("a value comes from env:VARIABLE or file:PATH")
		}
		if err != nil {
			return nil, fmt.Errorf("--secret %s: %w", name, err)
		}
	}
	return secrets, nil
}

// replayError wraps err with its exit code.
func replayError(ctx context.Context, err error) error {
	code := endsignal.Code(ctx)
	_, refused := errors.AsType[*replay.RefusedError](err)
	_, missing := errors.AsType[*replay.MissingError](err)
	switch {
	case code != 0 && errors.Is(err, standalone.ErrStuck):
		return withCode(code, nil) // the reader takes no message, either
	case code != 0:
		return withCode(code, err)
	case refused:
		return withCode(exitRefused, err)
	case missing, errors.Is(err, replay.ErrTrace):
		return err
	default:
		return systemError(err)
	}
}

// showReplay shows the differences between a replay and its trace.
func showReplay(talk *standalone.Talk, r *replay.Result) {
	for _, d := range r.Differences {
		text := d.String()
		if r.Runs > 1 {
			text += fmt.Sprintf(" (in %d of %d runs)", d.Runs, r.Runs)
		}
		talk.Say(text)
	}
	if r.More > 0 {
		talk.Say("and " + plural.Count(r.More, "more difference"))
	}
	if r.Unknown > 0 {
		talk.Notice(plural.Count(r.Unknown, "masked value") + " could not be compared")
	}
	text := "replay: the same as the trace"
	if !r.Same {
		text = "replay: different from the trace"
	}
	if r.Runs > 1 {
		text += fmt.Sprintf(" (%d runs)", r.Runs)
	}
	talk.Say(text)
}

// replayCode returns the exit code of a replay.
func replayCode(r *replay.Result) int {
	switch {
	case r.Same:
		return 0
	case r.Reason == standalone.System:
		return exitSystem
	case r.Reason == standalone.TimedOut:
		return exitTimeout
	default:
		return exitDifferent
	}
}
