package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/remote"
	"github.com/stepmux/stepmux/remote/standalone"
)

// maxBuilds bounds --builds: each waiting build costs memory.
const maxBuilds = 100_000

type runFlags struct {
	vmFlags
	logFlags
	operateFlags
	bootstrapFlags
	builds  int
	route   string
	timeout time.Duration
	vars    []string
	masked  []string
	output  string
	// outputFile says where the builds' traces go.
	outputFile string
	provenance runProvenance
}

func newRunCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] FILE...",
		Short: "Run a job's steps on VMs, as many builds at once as there are slots",
		Long: `Run the steps in each FILE, a YAML document with a run: list, on VMs. The builds' logs go to standard output,
each line with its build's name; progress and a summary go to standard error.

Without --instance a VM embedded in this program, on this machine, runs them: good for a first try, without any
isolation.

Builds are started by a relay, one program on each VM that takes one SSH session for all of them, and reached by
SSH's own forwarding or by the relay; where a VM has no relay, each build takes a session, and waits for one. --route
forces one way: relay, streamlocal (a session each, SSH's forwarding) or session (two sessions each).

` + vmHelp + `

With --output json, standard output has one object for each build as it ends and a last one with the summary; the
logs go to standard error.

` + exitHelp,
		Example: `  stepmux run --builds 6 --capacity 6 examples/hello.yml
  stepmux run --instance ssh://ci@vm-1 --instance ssh://ci@vm-2:2222 --capacity 8 --builds 200 examples/hello.yml
  stepmux run --inventory examples/inventory.yml --builds 200 --metrics :9100 examples/hello.yml`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error { return f.run(cmd, files) },
	}
	fl := cmd.Flags()
	f.vmFlags.register(fl)
	f.logFlags.register(fl)
	f.operateFlags.register(fl)
	f.bootstrapFlags.register(fl)
	fl.IntVar(&f.builds, "builds", 1, "how many builds to run of each FILE")
	fl.StringVar(&f.route, "route", string(connector.Auto),
		"how to start and reach a build's step runner: auto, relay, streamlocal or session")
	fl.DurationVar(&f.timeout, "timeout", 0,
		"end a build that takes longer, from the moment it has its slot (default none)")
	fl.StringArrayVar(&f.vars, "var", nil,
		"`NAME=VALUE`, a job variable; NAME alone takes the value in the environment; repeatable")
	fl.StringArrayVar(&f.masked, "mask", nil,
		"the variable of this `NAME` holds a secret: mask it in output and traces; repeatable")
	fl.StringVar(&f.output, "output", "text", "text or json")
	f.provenance.register(fl)
	fl.StringVar(&f.outputFile, "output-file", "", "write the trace of each build to this file, in whose name {build} "+
		"stands for the build, or into this directory, which is made if its name ends in /")
	return cmd
}

func (f *runFlags) run(cmd *cobra.Command, files []string) error {
	route, err := connector.ParseRoute(f.route)
	if err != nil {
		return usageError(fmt.Errorf("--route: %w", err))
	}
	switch {
	case f.builds < 1 || f.builds > maxBuilds:
		return usageError(fmt.Errorf("--builds %d: use 1 to %d", f.builds, maxBuilds))
	case f.timeout < 0:
		return usageError(fmt.Errorf("--timeout %v is negative", f.timeout))
	}
	if err := f.check(); err != nil {
		return usageError(err)
	}
	report, err := newReporter(f.output, cmd.OutOrStdout(), cmd.ErrOrStderr())
	if err != nil {
		return usageError(err)
	}
	vars, err := f.variables()
	if err != nil {
		return usageError(err)
	}
	jobs, err := readJobs(files)
	if err != nil {
		return usageError(err)
	}
	traces, err := tracePattern(f.outputFile, f.builds*len(jobs))
	if err != nil {
		return usageError(fmt.Errorf("--output-file: %w", err))
	}
	traces, endTraces, err := f.provenance.prepare(traces, f.builds*len(jobs))
	if err != nil {
		return usageError(err)
	}
	defer endTraces()

	// Who stops reading our output shall not keep us from cleaning up: a write then fails, and its build.
	// (Not ignored, but handled: what we start would inherit that.)
	brokenPipe := make(chan os.Signal, 1)
	signal.Notify(brokenPipe, syscall.SIGPIPE)
	defer signal.Stop(brokenPipe)
	// The first signal cancels the builds, with their grace; a second cuts them short.
	ctx, stop := untilSignalOf(cmd.Context(), f.endSignals()...)
	defer stop()
	abort, stopAbort := untilSecondSignal(ctx)
	defer stopAbort()

	bootstrap, err := f.bootstraps()
	if err != nil {
		return usageError(err)
	}
	logger := f.logger(report.talk())
	group, closeVMs, err := f.group(ctx, logger)
	if err != nil {
		return err
	}
	defer closeVMs()
	cfg := instance.Config{Group: group, Route: route, Bootstrap: bootstrap, Version: version(), Logger: logger}
	counts := f.hooks(&cfg)
	provider, err := instance.NewProvider(cfg)
	if err != nil {
		return usageError(err)
	}
	defer func() { _ = provider.Close() }() // all builds have ended
	stopOperating, err := f.operate(provider, group, counts, f.inventoryErr, logger)
	if err != nil {
		return err
	}
	defer stopOperating()

	batch := instance.Batch{
		Timeout: f.timeout,
		Builds:  f.batchBuilds(jobs, vars, traces, report),
		OnStart: report.started,
		OnEnd: func(r instance.Report) {
			if counts != nil {
				counts.Ended(r)
			}
			report.ended(r)
		},
	}
	report.begin(len(batch.Builds))
	reports := provider.RunBatch(ctx, abort, batch)
	report.summary(reports, provider.Stat())
	return outcome(ctx, reports)
}

// batchBuilds returns all builds of the run. IDs start with one that is this run's alone: other runs
// may use the same VMs.
func (f *runFlags) batchBuilds(
	jobs []connector.Job, vars []connector.Variable, traces string, report *reporter,
) []instance.BatchBuild {
	var prefix [3]byte
	_, _ = rand.Read(prefix[:]) // never fails
	var builds []instance.BatchBuild
	for range f.builds {
		for _, job := range jobs {
			id := fmt.Sprintf("%s-%d", hex.EncodeToString(prefix[:]), len(builds)+1)
			job.Env = map[string]string{"CI": "true", "CI_JOB_ID": id}
			job.Timeout, job.Vars = f.timeout, vars
			job := f.provenance.of(withTrace(job, traces, id, report.say), traces, id, report.say)
			builds = append(builds, instance.BatchBuild{ID: id, Job: job, Log: report.log(id)})
		}
	}
	return builds
}

// variables are those of all builds.
func (f *runFlags) variables() ([]connector.Variable, error) {
	given, err := standalone.Vars(f.vars, f.masked, os.LookupEnv)
	if err != nil {
		return nil, fmt.Errorf("--var: %w", err)
	}
	vars := make([]connector.Variable, len(given))
	for i, v := range given {
		vars[i] = connector.Variable{Key: v.Key, Value: v.Value, File: v.File, Masked: v.Masked}
	}
	return vars, nil
}

// readJobs reads and checks the steps files.
func readJobs(files []string) ([]connector.Job, error) {
	jobs := make([]connector.Job, len(files))
	for i, name := range files {
		text, err := readFile(name)
		if err != nil {
			return nil, err
		}
		if err := remote.CheckSteps(name, text); err != nil {
			return nil, err
		}
		jobs[i] = connector.Job{Steps: text}
	}
	return jobs, nil
}

// readFile reads a steps file, but no more of it than the parser would look at.
func readFile(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, remote.MaxSteps+1))
	if err != nil {
		return nil, err // names the file
	}
	return text, nil
}

// outcome returns the run's exit code as an error. Failures of the system come before those of
// scripts: the run as a whole then says nothing about the scripts.
func outcome(ctx context.Context, reports []instance.Report) error {
	if code := signalCode(ctx); code != 0 {
		return &exitError{code: code}
	}
	code, worst := 0, 0
	for _, r := range reports {
		if r.Err == nil {
			continue
		}
		c, weight := exitCode(r.Err)
		if weight > worst {
			code, worst = c, weight
		}
	}
	if code == 0 {
		return nil
	}
	return &exitError{code: code}
}

// exitCode returns the exit code a build's failure gives, and its weight among those of others.
func exitCode(err *instance.BuildError) (code, weight int) {
	switch err.Reason {
	case instance.ScriptFailure:
		return scriptCode(err.ExitCode), 1
	case instance.JobExecutionTimeout:
		return exitTimeout, 2
	case instance.ConfigurationError:
		return exitUsage, 3
	case instance.RunnerSystemFailure, instance.JobCanceled:
		return exitSystem, 4
	default:
		return exitSystem, 4
	}
}

// scriptCode returns a failed build's exit code, never one that would mean success.
func scriptCode(code int) int {
	if code <= 0 || code > 255 {
		return 1
	}
	return code
}

var errSecondSignal = errors.New("a second signal")

// untilSecondSignal returns a context that ends when, after ctx has, another signal comes.
func untilSecondSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	abort, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stopped := context.AfterFunc(ctx, func() {
		again, stop := untilSignal(abort)
		defer stop()
		<-again.Done()
		cancel(errSecondSignal)
	})
	return abort, func() {
		stopped()
		cancel(nil)
	}
}

// splitCommand splits a runner command into words. It is not a shell: quotes mean nothing.
func splitCommand(s string) ([]string, error) {
	words := strings.Fields(s)
	if len(words) == 0 && s != "" {
		return nil, errors.New("--runner-command is blank")
	}
	return words, nil
}
