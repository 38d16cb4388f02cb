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
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/internal/flagfile"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/checkout"
	"github.com/stepmux/stepmux/internal/standalone/jobplace"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/remote"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// addCheckout adds the git data of the project's directory (branch, commit) to the source of a .gitlab-ci.yml or of a
// workflow.
func addCheckout(ctx context.Context, src *standalone.Source, dir string) {
	vars, err := checkout.Variables(ctx, dir)
	if err != nil {
		src.Notices = append(src.Notices, fmt.Sprintf("CI_COMMIT_* and CI_DEFAULT_BRANCH are not known: %v", err))
	}
	src.Predefined = vars
	src.Changed = func(compareTo string) ([]string, error) { return checkout.Changed(ctx, dir, compareTo) }
	src.Ignored = func() ([]string, error) { return checkout.Ignored(ctx, dir) }
}

// sourceFlags select the job of a FILE, and its values, for a build on a VM.
type sourceFlags struct {
	formatFlag
	policyFlags
	jobName string
	inputs  []string
	json    string
	inImage bool
	timeout time.Duration
	vars    []string
	masked  []string
	env     map[string]string
}

func (f *sourceFlags) registerSource(fl *pflag.FlagSet) {
	f.register(fl, "steps", "gitlab-ci", "github")
	fl.StringVar(&f.jobName, "job-name", "", "the `JOB` of a .gitlab-ci.yml or of a workflow")
	fl.StringArrayVar(&f.inputs, "input", nil,
		"`name=value` of an input in the spec of the FILE, or of a workflow; JSON if its type is not string; repeatable")
}

// registerBuild registers the flags of the build itself.
func (f *sourceFlags) registerBuild(fl *pflag.FlagSet) {
	timeFlag(fl, &f.timeout, "timeout",
		"end a build that takes longer than this `time`, counted from its slot; a stepmux on the VM ends a job after 24h "+
			"in any case (default none)")
	fl.StringArrayVar(&f.vars, "var", nil, varUsage)
	maskFlag(fl, &f.masked, "traces")
	envFlag(fl, &f.env)
	f.registerEnvironment(fl, "the VM's")
	f.registerStrict(fl)
	f.registerUnsafeExports(fl)
	grouped(fl, buildGroup)
}

// options returns the flags that are options of a job.
func (f *sourceFlags) options() *stepmuxv1.Job {
	options := f.policyFlags.options().With(&stepmuxv1.Job{Env: f.env})
	if f.timeout > 0 {
		options.Timeout = durationpb.New(f.timeout)
	}
	return options
}

// envFlag adds --env.
func envFlag(fl *pflag.FlagSet, to *map[string]string) {
	*to = map[string]string{}
	fl.Func("env", "`NAME=VALUE` for the environment of the steps; repeatable", func(text string) error {
		if name, _, _ := strings.Cut(text, "="); !variableName.MatchString(name) {
			return fmt.Errorf("%.80q: write NAME=VALUE", text)
		}
		return assign(*to, text)
	})
	flagfile.Repeat(fl, "env")
}

// checkText returns an error if no message of protobuf can have the value of a variable, which may be a secret.
func checkText(flag, name, value string) error {
	if utf8.ValidString(value) {
		return nil
	}
	return fmt.Errorf("%s: the value of %s is not valid UTF-8, and a build on a VM can have no other", flag, name)
}

// reader checks the flags and returns a reader for the jobs of a command.
func (f *sourceFlags) reader(cmd *cobra.Command, project string) (*jobReader, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	given, err := standalone.Vars(f.vars, f.masked, os.LookupEnv)
	for _, v := range given {
		err = cmp.Or(err, checkText("--var", v.Key, v.Value))
	}
	for name, value := range f.env {
		err = cmp.Or(err, checkText("--env", name, value))
	}
	return &jobReader{
		sourceFlags: f, project: project, ctx: cmd.Context(), given: given, stdin: cmd.InOrStdin(),
		messages: cmd.ErrOrStderr(),
	}, err
}

// jobReader reads jobs for VMs.
type jobReader struct {
	*sourceFlags
	project  string          // the directory with the sources of a .gitlab-ci.yml; empty for this one
	ctx      context.Context // for reading the jobs, before any of them runs
	given    []engine.Variable
	stdin    io.Reader
	messages io.Writer
	told     []string // notices already shown
}

// files reads the jobs in files, and those of --json. A job may have a container.
func (r *jobReader) files(files []string, isJSON bool) ([]runJob, error) {
	sources, err := r.sources(files)
	if err != nil {
		return nil, err
	}
	return r.allJobs(sources, isJSON)
}

// allJobs reads the jobs of sources, and those of --json.
func (r *jobReader) allJobs(sources []standalone.Source, isJSON bool) (jobs []runJob, err error) {
	if isJSON {
		src := standalone.Source{Name: "--json", Text: []byte(r.json), Format: standalone.JSON}
		if r.json == "-" {
			src.Name = "stdin"
			if src.Text, err = standalone.ReadFile("-", r.stdin); err != nil {
				return nil, err
			}
		}
		job, err := r.steps(src, nil)
		return []runJob{job}, err
	}
	for _, src := range sources {
		more, err := r.jobs(src)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, more...)
	}
	return jobs, nil
}

// sources reads files.
func (r *jobReader) sources(files []string) (all []standalone.Source, err error) {
	for _, file := range files {
		src, err := r.read(file)
		if err != nil {
			return nil, err
		}
		all = append(all, src)
	}
	return all, nil
}

// jobs reads the jobs of a file. A job may have a container.
func (r *jobReader) jobs(src standalone.Source) ([]runJob, error) {
	name := src.Name
	script, err := isScript(name, src.Text)
	switch {
	case isPipeline(src):
		return r.pipeline(src)
	case r.jobName != "":
		return nil, fmt.Errorf("%s: --job-name is for a .gitlab-ci.yml or a workflow (--format gitlab-ci or github)", name)
	case err != nil:
		return nil, err
	case script:
		job, err := r.script(name, string(src.Text))
		return []runJob{job}, err
	}
	steps, box, err := place.FromJob(src.Name, src.Text)
	if err != nil {
		return nil, err
	}
	whole := src.Text
	src.Text = steps
	job, err := r.steps(src, whole)
	job.own = box
	return []runJob{job}, err
}

// script returns the job of a shell script.
func (r *jobReader) script(name, text string) (runJob, error) {
	text = strings.TrimPrefix(text, "\ufeff") // as some editors begin a file; a step runner of another version keeps it
	job := newRunJob(name, &stepmuxv1.Job{Script: text, Variables: jobVars(r.given)})
	if len(r.inputs) > 0 {
		return job, fmt.Errorf("%s: --input: a shell script has no inputs; give it variables (--env)", name)
	}
	v := standalone.ValidateScript(name, text)
	if !v.Valid {
		return job, errors.New(v.Errors[0].String())
	}
	job.warnings = v.Warnings
	return job, r.warn(v.Warnings)
}

// read reads a FILE, which may be a pipe. The name of the source is valid UTF-8, as in messages of protobuf.
func (r *jobReader) read(name string) (src standalone.Source, err error) {
	if src.Format, err = standalone.ParseFormat(r.format, name); err != nil {
		return src, err
	}
	if src.Name, src.Includes = strings.ToValidUTF8(name, "?"), r.includes; name == "-" {
		src.Name = "stdin"
	}
	src.Text, err = readFile(name)
	return src, err
}

// steps reads steps. Values for their inputs become the inputs' defaults, because a step runner accepts no inputs.
// whole is the text with the keys of its container, if it may have some.
func (r *jobReader) steps(src standalone.Source, whole []byte) (runJob, error) {
	job := newRunJob(src.Name, &stepmuxv1.Job{StepsFile: src.Name, Variables: jobVars(r.given)})
	var err error
	if src.Inputs, err = standalone.Inputs(r.inputs); err != nil {
		return job, fmt.Errorf("--input: %w", err)
	}
	j, err := standalone.Read(src)
	if err == nil {
		err = r.warn(j.Warnings)
	}
	if err != nil {
		return job, err
	}
	text, err := j.TextWithInputs()
	if err == nil {
		err = remote.CheckSteps(src.Name, []byte(text))
	}
	if err != nil {
		return job, err
	}
	job.Steps = []byte(text)
	if whole != nil {
		j.Steps = string(whole)
		if job.whole, err = j.TextWithInputs(); err != nil {
			return job, err
		}
	}
	job.warnings = j.Warnings
	job.Generated = src.Format == standalone.JSON // positions in the new text differ from the file's
	return job, nil
}

// jobVars returns variables of a job on this machine as those of a job on a VM.
func jobVars(of []engine.Variable) (vars []*stepmuxv1.Variable) {
	for _, v := range of {
		vars = append(vars, &stepmuxv1.Variable{Key: v.Key, Value: v.Value, File: v.File, Masked: v.Masked})
	}
	return vars
}

// ofProject adds the project and the values of the flags to src, a .gitlab-ci.yml.
func (r *jobReader) ofProject(src *standalone.Source) (err error) {
	if src.Inputs, err = standalone.Inputs(r.inputs); err != nil {
		return fmt.Errorf("--input: %w", err)
	}
	if src.WorkDir, err = filepath.Abs(r.project); err != nil {
		return err
	}
	if _, err := os.Stat(src.WorkDir); err != nil {
		return fmt.Errorf("--project: %w", err)
	}
	src.JobName, src.Vars, src.Elsewhere, src.InContainer = r.jobName, r.given, true, r.inImage
	addCheckout(r.ctx, src, src.WorkDir)
	return nil
}

// checkout returns a source without a text that has the project, its commit and the variables.
func (r *jobReader) checkout() standalone.Source {
	src := standalone.Source{WorkDir: r.project, Vars: r.given}
	if dir, err := filepath.Abs(r.project); err == nil {
		src.WorkDir = dir
	}
	addCheckout(r.ctx, &src, src.WorkDir)
	return src
}

// pipeline reads a job of a .gitlab-ci.yml, with all its parallel builds.
func (r *jobReader) pipeline(src standalone.Source) (jobs []runJob, err error) {
	if err := r.ofProject(&src); err != nil {
		return nil, err
	}
	if src.NoFiles = r.project == ""; src.NoFiles {
		src.Notices = append(src.Notices, "the job has no files of the project; give it them by --project .")
	}
	all, err := standalone.ReadAll(src)
	if err != nil {
		return nil, err
	}
	for _, j := range all {
		r.tell(j.Notices)
		if err := r.warn(j.Warnings); err != nil {
			return nil, err
		}
		job, err := r.onVM(src.Name, j)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, job)
	}
	return jobs, nil
}

// onVM returns a job of a .gitlab-ci.yml of this name as one for a VM.
func (r *jobReader) onVM(file string, j *standalone.Job) (runJob, error) {
	text, err := j.Text()
	if err == nil {
		err = remote.CheckSteps("the job "+j.Source.JobName, []byte(text))
	}
	if err != nil {
		return runJob{}, fmt.Errorf("%s: %w", file, err)
	}
	name := file + " " + j.Source.JobName
	job := newRunJob(name, &stepmuxv1.Job{
		Steps: []byte(text), StepsFile: name, Generated: true, Variables: jobVars(j.Vars), Env: j.Env, MayFail: j.MayFail,
	})
	job.ciJob, job.warnings = j.Source.JobName, j.Warnings
	if r.inImage {
		job.own, err = jobplace.Of(j)
	}
	return job, err
}

// warn shows warnings about scripts, each once. With --strict-scripts they are errors.
func (r *jobReader) warn(warnings []standalone.Problem) error {
	r.tell(standalone.WarningsToTell(warnings))
	return r.checkScripts(warnings)
}

// tell shows notices, each once.
func (r *jobReader) tell(notices []string) {
	for _, notice := range notices {
		if !slices.Contains(r.told, notice) {
			r.told = append(r.told, notice)
			fmt.Fprintf(r.messages, "note: %s\n", termtext.Line(notice))
		}
	}
}
