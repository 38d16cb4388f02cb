package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/batch"
	"github.com/stepmux/stepmux/remote"
	"github.com/stepmux/stepmux/remote/standalone"
)

// maxBuilds bounds --builds, as each waiting build costs memory.
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
	// outputFile is the file or directory of the traces.
	outputFile string
	provenance runProvenance
}

func newRunCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] FILE...",
		Short: "Run a job's steps on VMs, as many builds at once as there are slots",
		Long: `Run the steps in each FILE, a YAML document with a run: list, on VMs. The logs of the builds go to standard
output, each line with the name of its build; progress and a summary go to standard error.

Without --instance the steps run on a VM embedded in this program, on this machine: good for a first try, without any
isolation.

A relay on each VM starts all its builds over one SSH session. A build is reached by SSH's own forwarding or by the
relay. On a VM without a relay each build takes a session of its own, and waits until one is free. --route forces a
route: relay, streamlocal (one session each, and SSH's forwarding) or session (two sessions each).

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
	fl.StringVar(&f.outputFile, "output-file", "",
		"write the trace of each build to this file, with {build} for the name "+
			"of the build, or into this directory, which is made if its name ends in /")
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

	ctx, abort, stop := endings(cmd.Context(), f.endSignals()...)
	defer stop()
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

	all := batch.Batch{
		Logger:  logger,
		Timeout: f.timeout,
		Builds:  f.batchBuilds(jobs, vars, traces, report),
		OnStart: report.started,
		OnEnd: func(r batch.Report) {
			if counts != nil {
				counts.Ended(r)
			}
			report.ended(r)
		},
	}
	report.begin(len(all.Builds))
	reports := batch.Run(ctx, abort, provider, all)
	report.summary(reports, provider.Stat())
	return outcome(ctx, reports)
}

// batchBuilds returns all builds of the run. Their IDs begin with a random prefix, because other runs may use the same
// VMs.
func (f *runFlags) batchBuilds(
	jobs []connector.Job, vars []connector.Variable, traces string, report *reporter,
) []batch.Build {
	var prefix [3]byte
	_, _ = rand.Read(prefix[:]) // never fails
	var builds []batch.Build
	for range f.builds {
		for _, job := range jobs {
			id := fmt.Sprintf("%s-%d", hex.EncodeToString(prefix[:]), len(builds)+1)
			job.Env = map[string]string{"CI": "true", "CI_JOB_ID": id}
			job.Timeout, job.Vars = f.timeout, vars
			job := f.provenance.of(withTrace(job, traces, id, report.say), traces, id, report.say)
			builds = append(builds, batch.Build{ID: id, Job: job, Log: report.log(id)})
		}
	}
	return builds
}

// variables returns the variables of all builds.
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

// readFile reads a steps file, up to one byte more than the parser accepts.
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

// outcome returns the exit code of the run as an error. A failure of the system outranks those of scripts.
func outcome(ctx context.Context, reports []batch.Report) error {
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

// exitCode returns the exit code of a build's failure, and its rank among other failures.
func exitCode(err *instance.BuildError) (code, weight int) {
	switch err.Reason {
	case instance.ScriptFailure:
		return scriptCode(err.ExitCode), 1
	case instance.JobExecutionTimeout:
		return exitTimeout, 2
	case instance.ConfigurationError:
		return exitUsage, 3
	default:
		return exitSystem, 4
	}
}

// scriptCode returns the exit code of a failed build. It is never 0.
func scriptCode(code int) int {
	if code <= 0 || code > 255 {
		return 1
	}
	return code
}

// splitCommand splits a runner command into words, at blanks. Quotes have no meaning.
func splitCommand(s string) ([]string, error) {
	words := strings.Fields(s)
	if len(words) == 0 && s != "" {
		return nil, errors.New("--runner-command is blank")
	}
	return words, nil
}
