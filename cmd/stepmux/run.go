package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/batch"
	"github.com/stepmux/stepmux/internal/endsignal"
	"github.com/stepmux/stepmux/internal/gcpace"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/checkout"
	"github.com/stepmux/stepmux/remote"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// tellArtifacts is the largest number of builds in a run for which a line about each build's artifacts is shown.
const tellArtifacts = 20

type runFlags struct {
	vmFlags
	logFlags
	operateFlags
	bootstrapFlags
	imageFlags
	podFlags
	runFiles
	buildFlags
	projectFlags
	sourceFlags
	whole        wholeFlags
	artifactsDir string
	linger       time.Duration
	output       string
}

// runHelp is the description of run.
const runHelp = `Run the steps in each FILE on VMs. FILE is a YAML document with a run: list, a shell script, a
.gitlab-ci.yml, a GitHub workflow (--format github), or - for standard input.

A .gitlab-ci.yml runs as a whole pipeline, as with 'stepmux local': each job takes a slot as soon as its needs or the
stages before it have ended. Jobs get the files of --project, or else of the current directory, and the artifacts that
the file gives them. With --job-name one job of the file runs, with all its parallel builds, and with the files of
--project only. A workflow runs as a whole, too: its jobs by needs, if and matrix, with the outputs of the jobs that
they need, and with artifacts and caches for its actions.

The logs of the builds go to standard output, each line with the name of its build; progress and a summary go to
standard error.

Without --instance the steps run on a VM embedded in this program, on this machine and as your user. That is good for
a first try.

A relay on each VM starts all its builds over one SSH session. Builds are reached by SSH's forwarding of unix sockets or
by the relay. On a VM without a relay, each build takes a session of its own and waits until one is free. --route forces
a route: relay, streamlocal (one session for each build, and SSH's forwarding) or session (two sessions for each build).

` + vmHelp + `

With --image, or if FILE has the key image, each build runs in a container of its own. The Docker daemon of its VM
creates the container; without --instance, the daemon of this machine. The VM then needs no stepmux: the daemon gets it
in a volume.

With --kubernetes each build runs in a pod of its own, in the cluster of the kubeconfig. A build survives restarts of
the API server and the kubelet: it continues without a connection for the time of --linger (default 5m), and the run
reconnects to it.

On a terminal, logs keep their colours, and other control characters are made visible; with --output raw nothing is
changed. With --output json, standard output has one object for each build when it ends and a last one with the summary;
the logs go to standard error.

` + exitHelp

func newRunCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] FILE... | run [flags] --json TEXT|-",
		Short: "Run a job's steps on VMs, as many builds at once as there are slots",
		Long:  runHelp,
		Example: `  stepmux run --builds 6 --capacity 6 examples/hello.yml
  stepmux run --instance ssh://ci@vm-1 --instance ssh://ci@vm-2:2222 --capacity 8 --builds 200 examples/hello.yml
  stepmux run --inventory examples/inventory.yml --builds 200 --metrics :9100 examples/hello.yml`,
		RunE: f.run,
	}
	fl := cmd.Flags()
	f.vmFlags.register(fl)
	f.logFlags.register(fl)
	f.operateFlags.register(fl)
	f.bootstrapFlags.register(fl)
	f.imageFlags.register(fl)
	f.registerDaemon(fl)
	f.podFlags.register(fl)
	f.buildFlags.register(fl)
	f.registerProject(fl)
	f.registerSource(fl)
	f.whole.register(fl, 0, "as many as there are slots")
	fl.BoolVar(&f.inImage, "in-image", false, "run the jobs of a .gitlab-ci.yml or a workflow in "+
		"containers of their own images")
	fl.StringVar(&f.json, "json", "", "run these steps, a `TEXT` in JSON; - reads them from standard input")
	grouped(fl, jobGroup)
	fl.StringVar(&f.artifactsDir, "artifacts-dir", "artifacts",
		"`DIR` for --artifacts: each build's are in a directory below it, named after the build")
	grouped(fl, fileGroup)
	f.registerConnections(fl)
	f.registerOptions(fl)
	boundedTimeFlag(fl, &f.linger, "linger", "let builds continue for this `time`, at most 24h, when the connection to "+
		"their VM is lost: the run reconnects to them; 0: builds end with the connection "+
		"(default that of the inventory, else 0)", 0, instance.MaxLinger)
	f.registerBuild(fl)
	f.output = "text"
	choiceFlag(fl, &f.output, "output", "text, raw or json", "text", "raw", "json")
	grouped(fl, outputGroup)
	f.runFiles.register(fl)
	f.completeJobs(cmd, &f.project)
	return cmd
}

func (f *runFlags) run(cmd *cobra.Command, files []string) (err error) {
	gcpace.Set()
	isJSON := cmd.Flags().Changed("json")
	if err := f.checkRun(cmd, files, isJSON); err != nil {
		return err
	}
	reader, err := f.reader(cmd, f.project)
	if err != nil {
		return err
	}
	sources, err := reader.sources(files)
	if err != nil {
		return err
	}
	if isWhole, err := f.isWhole(cmd, sources); err != nil {
		return err
	} else if isWhole {
		return f.runWhole(cmd, reader, sources[0])
	}
	var given runInput
	if given.jobs, given.inContainers, err = f.readJobs(reader, sources, isJSON); err != nil {
		return err
	}
	atLeast, err := f.checkBuilds(len(given.jobs), 1)
	if err != nil {
		return err
	}
	if f.each {
		atLeast++ // there may be many VMs
	}
	removeTraces, err := f.prepare(cmd.Context(), files, atLeast, f.way.PassphraseCommand)
	if err != nil {
		return err
	}
	defer removeTraces()

	ctx, abort, stop := endings(cmd.Context(), f.endSignals()...)
	defer stop()
	if given.bootstrap, err = f.bootstraps(); err != nil {
		return err
	}
	if given.project, err = f.pack(ctx, checkout.Copy{}, cmd.ErrOrStderr()); err != nil {
		return cmp.Or(withCode(endsignal.Code(ctx), nil), err)
	}
	defer given.project.Close()
	if slices.ContainsFunc(given.jobs, func(j runJob) bool { return usesActions(j.Steps) }) {
		given.services = servicesOf(cmd.Context(), reader.checkout())
		defer func() { err = errors.Join(err, given.services.close()) }()
	}
	return f.shown(ctx, abort, cmd, func(ctx context.Context, report *reporter) error {
		return f.runJobs(ctx, abort, given, report)
	})
}

// shown calls run with a reporter. The context of run ends when the logs cannot be written any more.
func (f *runFlags) shown(
	ctx, abort context.Context, cmd *cobra.Command, run func(context.Context, *reporter) error,
) (err error) {
	ctx, noReader := context.WithCancelCause(ctx)
	defer noReader(nil)
	report := newReporter(f.output, cmd.OutOrStdout(), cmd.ErrOrStderr(), func(err error) {
		noReader(fmt.Errorf("the logs cannot be written: %w", err))
	})
	defer func() {
		if lost := report.close(ctx, abort, f.patience()); lost != nil && err == nil {
			err = withCode(exitSystem, nil) // close has reported it
		}
	}()
	return run(ctx, report)
}

// checkRun returns an error if the flags do not fit together, or do not fit the arguments.
func (f *runFlags) checkRun(cmd *cobra.Command, files []string, isJSON bool) error {
	switch {
	case isJSON && len(files) > 0:
		return errors.New("use either --json or FILE")
	case !isJSON && len(files) == 0:
		return fmt.Errorf("the FILE is missing; write %s", cmd.UseLine())
	}
	if _, err := f.checkBuilds(1, 1); err != nil {
		return err
	}
	for _, a := range f.matrix {
		if slices.Contains(f.masked, a.name) {
			return fmt.Errorf("--mask %s: the values of --matrix are in the name of each build", a.name)
		}
	}
	if err := f.checkPods(); err != nil {
		return err
	}
	if f.onCluster() && cmd.Flags().Changed("linger") && f.linger == 0 {
		return errors.New("--linger 0 does not work with --kubernetes: builds in pods linger")
	}
	if err := f.checkProject(); err != nil {
		return err
	}
	if len(f.artifacts) > 0 {
		if err := checkDir(f.artifactsDir); err != nil {
			return fmt.Errorf("--artifacts-dir: %w", err)
		}
	} else if cmd.Flags().Changed("artifacts-dir") {
		return errors.New("--artifacts-dir needs --artifacts, the files to collect")
	}
	return nil
}

// runInput is the input of a run, read and checked.
type runInput struct {
	jobs         []runJob
	inContainers bool // at least one of the jobs
	bootstrap    []*program.Binary
	project      *packed
	services     *jobServices // nil if no job has actions
}

// runJobs runs the jobs on the VMs, which it connects to, and returns the exit code of the run as an error.
func (f *runFlags) runJobs(ctx, abort context.Context, given runInput, report *reporter) error {
	vms, err := f.open(ctx, given, report)
	if err != nil {
		return err
	}
	defer vms.close()
	total, err := f.checkBuilds(len(given.jobs), len(vms.places))
	if err != nil {
		return err
	}
	report.watch(total, vms.provider.Stat)
	all := f.batch(vms, report)
	//nolint:contextcheck // provenance is signed when a build has ended, also after ctx
	all.Builds = f.batchBuilds(given, vms.places, report)
	all.Timeout, all.MaxFailures = f.timeout, f.maxFailures
	reports := batch.Run(ctx, abort, vms.provider, all)
	report.summary(reports, vms.provider.Stat())
	return f.unlessLost(outcome(ctx, reports))
}

// batch returns a batch without builds.
func (f *runFlags) batch(vms *runVMs, report *reporter) batch.Batch {
	all := batch.Batch{
		Logger:  vms.logger,
		OnStart: report.started,
		OnEnd: func(r batch.Report) {
			vms.counts.Ended(r)
			report.ended(r)
		},
	}
	if f.vmFlags.flags.Changed("linger") {
		all.Linger = &f.linger
	}
	return all
}

// patience is how long a run waits at its end for a reader that does not read.
func (f *runFlags) patience() time.Duration {
	if f.timeout > 0 {
		return 10 * time.Second
	}
	return 5 * time.Minute // as long as a build waits for it
}

// batchBuilds returns all builds of the run. Their IDs begin with a random prefix, because other runs may use the same
// VMs.
func (f *runFlags) batchBuilds(given runInput, places []string, report *reporter) []batch.Build {
	var prefix [3]byte
	_, _ = rand.Read(prefix[:]) // never fails
	var builds []batch.Build
	jobs, project := given.jobs, given.project.archive()
	combinations := f.combinations()
	of := f.builds * len(combinations) * len(places)
	say := report.say
	if of*len(jobs) > tellArtifacts {
		say = func(string) {}
	}
	for n := range of {
		values, place := combinations[n/len(places)%len(combinations)], places[n%len(places)]
		for _, j := range jobs {
			job := j.Job
			over := f.options().With(&stepmuxv1.Job{Variables: slices.DeleteFunc(slices.Clone(j.Variables),
				func(v *stepmuxv1.Variable) bool {
					return slices.ContainsFunc(values, func(of *stepmuxv1.Variable) bool { return of.Key == v.Key })
				})})
			over.Variables = append(over.Variables, values...)
			id := fmt.Sprintf("%x-%d", prefix, len(builds)+1)
			job.Job = (&stepmuxv1.Job{Env: map[string]string{
				"CI": "true", "CI_JOB_ID": id, "CI_NODE_INDEX": strconv.Itoa(n + 1), "CI_NODE_TOTAL": strconv.Itoa(of),
			}}).With(j.Job.Job).With(over)
			job.Project, job.Artifacts = project, f.artifactsFor(f.artifactsDir, id, say)
			if given.services != nil && usesActions(job.Steps) {
				job.Services = given.services.alone(id)
			}
			name := j.name
			for _, v := range values {
				job.Env[v.Key] = v.Value
				name += " " + v.Key + "=" + v.Value
			}
			builds = append(builds, batch.Build{
				ID: id, Job: f.traced(job, id, report.say), Log: report.log(id, name, place, j.warnings), On: place,
				Labels: f.selected, Place: j.place,
			})
		}
	}
	return builds
}

// runJob is a job of a run.
type runJob struct {
	connector.Job
	name  string            // of its file
	ciJob string            // its name in a .gitlab-ci.yml
	whole string            // the steps with the keys of their container, for a manager; empty if there are none
	own   *place.Spec       // what its keys image and services say, or nil
	place place.Description // nil if it runs on the VM itself
	// warnings are about scripts of the job.
	warnings []standalone.Problem
}

func newRunJob(name string, job *stepmuxv1.Job) runJob {
	return runJob{name: name, Job: connector.Job{Job: job}}
}

// readJobs reads and checks the jobs. some is true if at least one has a place of its own.
func (f *runFlags) readJobs(
	r *jobReader, sources []standalone.Source, isJSON bool,
) (jobs []runJob, some bool, err error) {
	if jobs, err = r.allJobs(sources, isJSON); err != nil {
		return nil, false, err
	}
	named := func(j runJob) bool { return j.own != nil && j.own.Image != "" }
	if err := f.check(slices.ContainsFunc(jobs, named)); err != nil {
		return nil, false, err
	}
	for i := range jobs {
		name, own := jobs[i].name, jobs[i].own
		jobs[i].place, err = f.placeIn(own)
		switch {
		case err != nil && (own != nil || f.onCluster() || f.inImage):
			return nil, false, fmt.Errorf("%s: %w", name, err)
		case err != nil:
			return nil, false, err
		}
		some = some || jobs[i].place != nil
	}
	return jobs, some, nil
}

// readFile reads a steps file, or standard input if its name is -, up to one byte more than the parser accepts.
func readFile(name string) ([]byte, error) {
	file := os.Stdin
	if name != "-" {
		var err error
		if file, err = os.Open(name); err != nil {
			return nil, err
		}
		defer file.Close()
	}
	return io.ReadAll(io.LimitReader(file, remote.MaxSteps+1)) // errors name the file
}

// shells matches the names of the shells whose scripts a build runs: those that bash does not read as they do with a
// warning.
var shells = regexp.MustCompile(`\b(sh|bash|dash|ash|ksh|zsh)\b`)

// isScript reports whether a file is a shell script: its name ends in .sh or it begins with #!.
func isScript(name string, text []byte) (bool, error) {
	program := standalone.Interpreter(text)
	switch {
	case len(text) > remote.MaxSteps && (strings.HasSuffix(name, ".sh") || shells.MatchString(program)):
		return false, fmt.Errorf("%s: the script has more than %d MiB; bring a part of it in a file of --project",
			name, remote.MaxSteps>>20)
	case len(text) > remote.MaxSteps:
		return false, nil // the parser reports it
	case program != "" && !shells.MatchString(program):
		first, _, _ := strings.Cut(string(text), "\n")
		return false, fmt.Errorf("%s: %.80q: FILE is a YAML document with a run: list, or a shell script", name, first)
	default:
		return program != "" || strings.HasSuffix(name, ".sh"), nil
	}
}

// noScript returns an error if a file that should be YAML has the name of a shell script. For a text that begins with
// #! the parser reports this itself.
func noScript(name string, text []byte) error {
	if strings.HasSuffix(name, ".sh") && standalone.Interpreter(text) == "" {
		return fmt.Errorf(`%s: the file is a script, not steps; write "run:", "- script: |" and the script, indented, `+
			"or run it by stepmux run", name)
	}
	return nil
}

// outcome returns the exit code of the run as an error. A system failure takes precedence over failures of scripts.
func outcome(ctx context.Context, reports []batch.Report) error {
	code, worst := 0, 0
	for _, r := range reports {
		if c, weight := exitCode(r.Err); weight > worst {
			code, worst = c, weight
		}
	}
	return withCode(cmp.Or(endsignal.Code(ctx), code), nil)
}

// exitCode returns the exit code of a build, and the weight of its failure among the others.
func exitCode(err *instance.BuildError) (code, weight int) {
	switch {
	case err == nil, errors.Is(err, batch.ErrFailures): // others have failed
		return 0, 0
	case err.Reason == instance.ScriptFailure:
		return scriptCode(err.ExitCode), 1
	case err.Reason == instance.JobExecutionTimeout:
		return exitTimeout, 2
	case err.Reason == instance.ConfigurationError:
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
