package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/internal/flagfile"
	"github.com/stepmux/stepmux/internal/standalone"
)

type localFlags struct {
	jobFlags
	settingFlags
	formatFlag
	jobName string
	inputs  []string
	vars    []string
	env     map[string]string
	json    string
	matrix  map[string]string
	whole   wholeFlags

	inContainer localContainer
}

// localHelp is the description of local.
const localHelp = `Run the steps in FILE, or a job of a .gitlab-ci.yml, in the current directory, as this user and
without any isolation. FILE may be - for standard input.

A .gitlab-ci.yml runs as a whole pipeline, unless --job-name chooses a job: the jobs that its rules put into the
pipeline, by stages and needs. Each job runs in a new directory with the files of the project that git does not ignore,
and the artifacts and caches that the file gives it. Only --manual runs manual jobs. Delayed jobs start at once,
without --wait-delayed. The summary says why a job did not run. --resume goes on after a failure. The exit code is that
of the first job that failed.

A GitHub Actions workflow (--format github) runs as a whole, too, unless --job-name chooses a job: its jobs by needs, if
and matrix, each in a new directory with the files of the project, with the outputs of the jobs that it needs. --event
names the event that starts it.

With --job-name one job runs in the current directory. A .gitlab-ci.yml may use include: local, extends, !reference,
default, variables, rules and parallel. One of several parallel builds runs: --job-name "test 2/5", or "test: [linux]"
of a matrix. Keys for a server or a runner, such as image, artifacts and cache, are ignored, and a note names them. So
are includes from elsewhere, unless --includes names a directory with their files. In a git checkout, the variables
CI_COMMIT_* describe its commit.

The steps of a workflow may be composite, node and docker actions. Node actions find services for artifacts, which end
with the run, and for caches, which later runs find. Variables that are masked (--mask) are its secrets, the others its
vars; GITHUB_TOKEN is its token. Permissions are ignored, and a note names them; so are services and containers without
--in-image.

With --image or --in-image jobs run in containers of this machine's Docker daemon, beside their services. The work
directory has the same path in the container, and the job can change it.

Standard output has only the output of the steps; all messages of stepmux are on standard error. With --output json
standard output has the results as one object, and the steps' output goes to standard error.

` + jobExitHelp

func newLocalCommand() *cobra.Command {
	var f localFlags
	cmd := &cobra.Command{
		Use:   "local [flags] FILE | local [flags] --json TEXT|-",
		Short: "Run a file of steps, a .gitlab-ci.yml or a job of a GitHub workflow on this machine",
		Long:  localHelp,
		Example: `  stepmux local examples/hello.yml
  stepmux local .gitlab-ci.yml --format gitlab-ci --job-name hello-world --output-file trace.json
  stepmux local .gitlab-ci.yml --jobs 4 --manual deploy
  stepmux local .github/workflows/test.yml --job-name test --matrix go=1.26
  stepmux local --json '[{"script": "echo hello"}]'`,
		Args: arguments("[FILE]"),
		RunE: f.run,
	}
	fl := cmd.Flags()
	f.jobFlags.register(fl)
	f.settingFlags.register(fl)
	f.formatFlag.register(fl, "steps", "gitlab-ci", "github")
	grouped(fl, jobGroup)
	f.whole.register(fl, runtime.GOMAXPROCS(0), "processors")
	f.inContainer.register(fl)
	fl.BoolVar(&f.inContainer.ofJob, "in-image", false, "run the job in a container of the image that it names")
	grouped(fl, containerGroup)
	fl.StringVar(&f.jobName, "job-name", "", "the `JOB` of a .gitlab-ci.yml or of a workflow; without it these run as a "+
		"whole")
	f.matrix = map[string]string{}
	fl.Func("matrix", "`name=value` of the matrix of a workflow's job, for this run: JSON, or else a text; of the matrix "+
		"of a .gitlab-ci.yml, to choose one build; repeatable", func(text string) error { return assign(f.matrix, text) })
	flagfile.Repeat(fl, "matrix")
	fl.StringArrayVar(&f.inputs, "input", nil,
		"`name=value` of an input in the spec of the FILE, or of a workflow; JSON if its type is not string; repeatable")
	fl.StringArrayVar(&f.vars, "var", nil, varUsage)
	envFlag(fl, &f.env)
	fl.StringVar(&f.json, "json", "", "run these steps, a `TEXT` in JSON; - reads them from standard input")
	grouped(fl, jobGroup)
	f.completeJobs(cmd, &f.workDir)
	return cmd
}

// run runs the job or the pipeline that the flags and arguments name.
func (f *localFlags) run(cmd *cobra.Command, files []string) (err error) {
	if err := f.apply(cmd); err != nil {
		return err
	}
	if len(files) > 0 {
		f.input = files[0]
	}
	at, err := f.place()
	if err != nil {
		return err
	}
	src, srcErr := f.source(cmd, files)
	if srcErr == nil {
		isWhole, wrong := f.isWhole(cmd, src)
		if wrong != nil {
			return wrong
		}
		if f.services = newJobServices(cmd.Context(), src); f.services != nil {
			defer func() { err = errors.Join(err, f.services.close()) }()
		}
		if isWhole {
			return f.runWhole(cmd, src)
		}
	}
	return f.runJob(cmd, func() (standalone.Source, error) { return src, srcErr }, at)
}

// completeJobs completes --job-name with the jobs in the named file, or in the .gitlab-ci.yml of the project in dir.
// Steps in --json have no format, and no jobs.
func (f *formatFlag) completeJobs(cmd *cobra.Command, dir *string) {
	_ = cmd.RegisterFlagCompletionFunc("job-name", completing(func(cmd *cobra.Command, files []string) []string {
		name := ".gitlab-ci.yml"
		if len(files) > 0 && files[0] != "-" {
			name = files[0]
		}
		src, err := f.readFile(name, nil)
		if err == nil {
			src.WorkDir, err = filepath.Abs(*dir)
		}
		if err != nil {
			return nil
		}
		addCheckout(cmd.Context(), &src, src.WorkDir)
		return standalone.JobNames(src)
	})) // cannot fail: the flag exists
	if cmd.Flags().Lookup("json") != nil {
		cmd.MarkFlagsMutuallyExclusive("json", "format")
		cmd.MarkFlagsMutuallyExclusive("json", "job-name")
	}
}

// source returns the job that the flags and arguments name.
func (f *localFlags) source(cmd *cobra.Command, files []string) (src standalone.Source, err error) {
	isJSON := cmd.Flags().Changed("json")
	switch {
	case isJSON && len(files) > 0:
		return src, errors.New("use either --json or FILE")
	case !isJSON && len(files) == 0:
		return src, errors.New("the job is missing; name a FILE, or give steps with --json")
	case isJSON && f.json == "-":
		src.Text, err = standalone.ReadFile("-", cmd.InOrStdin())
		src.Name, src.Format = "stdin", standalone.JSON
	case isJSON:
		src.Name, src.Text, src.Format = "--json", []byte(f.json), standalone.JSON
	default:
		src, err = f.readFile(files[0], cmd.InOrStdin())
		if err == nil && src.Format == standalone.Steps {
			err = noScript(src.Name, src.Text)
		}
		if err == nil && src.Format == standalone.Steps {
			src.Text, f.inContainer.own, err = place.FromJob(src.Name, src.Text)
		}
		src.InContainer = f.inContainer.wanted()
	}
	if err != nil {
		return src, err
	}
	src.JobName, src.Matrix, src.Env = f.jobName, f.matrix, f.env
	if src.Format == standalone.GitLabCI || src.Format == standalone.GitHub {
		dir, err := f.dir()
		if err != nil {
			return src, err
		}
		src.WorkDir = dir
		if src.Format == standalone.GitHub {
			src.Fetch = fetchWorkflow(cmd.Context(), f.actions, f.cacheDir)
			if err := workflowEvent(&src, f.whole.event.event, cmd.InOrStdin()); err != nil {
				return src, err
			}
		}
		addCheckout(cmd.Context(), &src, dir)
		if src.Format == standalone.GitLabCI {
			if err := f.whole.event.apply(cmd.Context(), &src, dir); err != nil {
				return src, err
			}
		}
		out := cmd.OutOrStdout()
		src.Colours = f.output != "json" && isTerminal(out) && os.Getenv("NO_COLOR") == ""
	}
	if src.Inputs, err = standalone.Inputs(f.inputs); err != nil {
		return src, fmt.Errorf("--input: %w", err)
	}
	vars, err := f.variables()
	if err != nil {
		return src, err
	}
	src.Vars, err = standalone.Vars(append(vars, f.vars...), f.masked, os.LookupEnv)
	return src, err
}
