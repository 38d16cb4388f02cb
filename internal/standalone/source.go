package standalone

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/stepmux/stepmux/internal/standalone/answers"
	"github.com/stepmux/stepmux/internal/standalone/gitlabci"
	"github.com/stepmux/stepmux/remote/step/action"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/lang"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// Format is the language of a text.
type Format string

// The formats.
const (
	Steps    Format = "steps"     // a job's steps, or the definition of a step
	GitLabCI Format = "gitlab-ci" // a .gitlab-ci.yml
	JSON     Format = "json"      // steps, in JSON
	GitHub   Format = "github"    // a workflow of GitHub Actions
)

// ParseFormat returns the format called text. If text is empty, it returns the format of files called name.
func ParseFormat(text, name string) (Format, error) {
	switch f := Format(text); f {
	case Steps, GitLabCI, GitHub:
		return f, nil
	case "":
		if strings.HasSuffix(name, ".gitlab-ci.yml") || strings.HasSuffix(name, ".gitlab-ci.yaml") {
			return GitLabCI, nil
		}
		if strings.Contains(name, ".github/workflows/") {
			return GitHub, nil
		}
		return Steps, nil
	default:
		return "", fmt.Errorf("format %.64q: use steps, gitlab-ci or github", text)
	}
}

// Source is the text of a job, with values from the caller.
type Source struct {
	// Name is the name of the text in errors.
	Name   string
	Text   []byte
	Format Format
	// JobName is the job of a .gitlab-ci.yml or of a workflow. It may be empty if there is only one job.
	JobName string
	// Inputs are values for the inputs in the spec of steps or of a .gitlab-ci.yml. The value of a string input is used
	// unchanged; all others are JSON.
	Inputs map[string]string
	// Matrix has the values of a workflow's matrix for this run: JSON, or else texts. For a .gitlab-ci.yml the values
	// of parallel: matrix choose one of the builds of the job.
	Matrix map[string]string
	// Event is the name of the event that starts a workflow, such as push. It may be empty. Payload is its description in
	// JSON, as github.event has it. If nil, it is made from the commit in the work directory.
	Event   string
	Payload []byte
	// Needs are the outcomes of jobs that ran elsewhere, by name: each job of a workflow needs them.
	Needs map[string]action.Outcome
	// Marks is a token: the output of a job of a workflow has a line with it where each of its steps begins and ends. If
	// empty, there are no such lines. Actions is the URL of the server of actions that name none. If empty, github.com.
	Marks, Actions string
	// Vars are job variables. They replace those of a .gitlab-ci.yml.
	Vars []engine.Variable
	// Env is added to the environment of the steps. What the text says takes precedence.
	Env map[string]string
	// Skip are jobs of a whole pipeline that the caller leaves out. They may have mistakes.
	Skip []string
	// InContainer says that the caller runs the job in the container that the job describes. Then there is no notice
	// about that.
	InContainer bool
	// Predefined are variables that the variables of a .gitlab-ci.yml override. A workflow has those of its commit,
	// unless Vars describe one. Changed is as in [gitlabci.Config].
	Predefined []gitlabci.Variable
	Changed    func(compareTo string) ([]string, error)
	// Ignored returns the files in WorkDir that are not part of the project, and the directories, which end with a slash.
	// Rules and includes of a .gitlab-ci.yml do not find them. May be nil.
	Ignored func() ([]string, error)
	// Repository is the owner/name@revision that the text of a workflow comes from. It is empty for the project.
	Repository string
	commit     string // of the Repository, if it is known
	lock       lock   // of the project's actions
	// Fetch fetches the repository of a workflow that is called, and returns its directory, its commit, and a function
	// that releases it. If nil, such a workflow is an error.
	Fetch func(of action.Uses) (dir, commit string, release func(), err error)
	// Notices come before the notices of the job.
	Notices []string
	// Elsewhere says that the job does not run in WorkDir, but in a directory that is not known yet.
	Elsewhere bool
	// NoFiles says that the directory of the job is empty, whatever is in WorkDir: a checkout in a workflow's job runs.
	NoFiles bool
	// Colours says that the commands in the scripts of a .gitlab-ci.yml are shown in colours.
	Colours bool
	// Answers, if not nil, replace the files of WorkDir and Includes, and Changed.
	Answers *answers.Set
	// WorkDir is the directory of the job. A .gitlab-ci.yml includes files from there.
	WorkDir string
	// Includes is a directory that has the files which a .gitlab-ci.yml includes from other places; see
	// [gitlabci.Read]. If empty, such files are left out.
	Includes string
}

// Job is a job that can be run. [Read] reads it, or [NewJob] makes it from parts, such as those of a trace.
type Job struct {
	Given

	name string // in a .gitlab-ci.yml
	text []byte // text of the Source, for a trace
}

// Given has the parts of a job.
type Given struct {
	// Notices are lines about parts of the source that do not apply here.
	Notices []string
	// Warnings are about scripts that may not do what their author expects, as in a [Verdict].
	Warnings []Problem
	// Source describes the text of the job, for a trace.
	Source trace.Source
	// Config has the job's Definition, Places, Inputs, Vars, Env and MayFail. RunnerEnv replaces the environment of
	// this process, from which only few variables reach a step. [Run] sets the rest.
	engine.Config
	// Steps is a text that compiles to Definition. If empty, a trace gets a text made from Definition.
	Steps string
	// Container has the keys image and services of a job of a .gitlab-ci.yml, in YAML. It is empty if the job has
	// neither.
	Container []byte
	// Secrets are texts to mask, in addition to the values of masked variables.
	Secrets []string
}

// TextWithInputs returns a text that compiles to the job's definition, with the job's inputs as the defaults in its
// spec. The lines of its steps are those of Steps.
func (j *Job) TextWithInputs() (string, error) {
	if len(j.Inputs) == 0 {
		return j.Text()
	}
	def := proto.CloneOf(j.Definition)
	for name, v := range j.Inputs {
		def.GetSpec().GetSpec().GetInputs()[name].Default = v.Proto()
	}
	text, err := lang.Format(def)
	if err != nil {
		return "", err
	}
	spec, _, _ := strings.Cut(text, separator)
	src, err := lang.Load("steps", []byte(j.Steps))
	if err != nil || len(src.Docs) != 2 {
		return "", errors.Join(errors.New("BUG: steps with inputs are not two documents"), err)
	}
	lines := strings.SplitAfter(j.Steps, "\n")
	at := src.Docs[1].Line - 1
	for at > 0 && !strings.HasPrefix(lines[at], "---") {
		at--
	}
	return spec + strings.Repeat("\n", max(at, 1)) + strings.Join(lines[at:], ""), nil
}

// separator stands between two documents of YAML.
const separator = "\n---\n"

// NewJob returns the job g.
func NewJob(g Given) *Job { return &Job{Given: g} }

// Text returns a text that compiles to the job's definition.
func (j *Job) Text() (string, error) {
	if j.Steps != "" {
		return j.Steps, nil
	}
	return lang.Format(j.Definition)
}

// Read reads the job of src. An error is about the text, or about the values that the caller has added.
func Read(src Source) (*Job, error) {
	all, err := read(src, func(_ *gitlabci.File, name string) ([]string, error) { return []string{name}, nil })
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// ReadAll reads the job of src like Read. If the job has parallel builds and the name does not choose one, it returns
// all of them.
func ReadAll(src Source) ([]*Job, error) { return read(src, (*gitlabci.File).Builds) }

// read reads the jobs of src. In a .gitlab-ci.yml, builds returns the names of the builds to read for a job's name.
func read(src Source, builds func(f *gitlabci.File, name string) ([]string, error)) (jobs []*Job, err error) {
	var j *Job
	switch {
	case len(src.Matrix) > 0 && src.Format != GitHub && src.Format != GitLabCI:
		return nil, errors.New("a matrix is for a job of a workflow (--format github) or of a .gitlab-ci.yml")
	case src.Format == GitLabCI:
		jobs, err = readGitLabCI(src, builds)
	case src.Format == GitHub:
		j, err = readGitHub(src)
	default:
		if j, err = readSteps(src); err == nil {
			_, warnings, _ := lang.Vet(src.Name, src.Text, false) // readSteps has checked the text
			j.Warnings = Problems(warnings)
		}
	}
	if err != nil {
		return nil, err
	}
	if j != nil {
		jobs = []*Job{j}
	}
	if err := lang.CheckEnv("env", src.Env); err != nil {
		return nil, err
	}
	for _, j := range jobs {
		j.complete(src)
	}
	return jobs, nil
}

// complete adds the parts of src to the job that do not depend on its language.
func (j *Job) complete(src Source) {
	j.Source, j.text = sourceOf(src, j.name), src.Text
	if j.Env == nil && len(src.Env) > 0 {
		j.Env = map[string]string{}
	}
	maps.Copy(j.Env, src.Env)
	j.Notices = append(slices.Clone(src.Notices), j.Notices...)
	for _, v := range j.Vars {
		if v.Masked && v.Value != "" {
			if err := new(mask.Set).Add(v.Value); err != nil {
				j.Notices = append(j.Notices, fmt.Sprintf("the variable %s is not masked: %v", v.Key, err))
			}
		}
	}
}

// sourceOf describes src for a trace. name is the name of the job in it.
func sourceOf(src Source, name string) trace.Source {
	sum := sha256.Sum256(src.Text)
	s := trace.Source{Kind: trace.FromFile, JobName: name, Digest: trace.Digest{trace.SHA256: hex.EncodeToString(sum[:])}}
	switch {
	case src.Format == GitLabCI:
		s.Kind = trace.FromGitLabCI
	case src.Format == GitHub:
		s.Kind = trace.FromGitHub
	case src.Format == JSON:
		s.Kind = trace.FromJSON
	case src.Name == StepsVariable:
		s.Kind = trace.FromEnv
	}
	return s
}

// readSteps reads a list of steps, or the definition of a step.
func readSteps(src Source) (*Job, error) {
	if src.JobName != "" {
		return nil, fmt.Errorf("job %.64q: a list of steps has no jobs; the formats gitlab-ci and github have", src.JobName)
	}
	if src.Format == JSON {
		var err error
		if src.Text, err = fromJSON(src.Name, src.Text); err != nil {
			return nil, err
		}
	}
	def, err := lang.ParseCalled(src.Name, src.Text)
	if err != nil {
		return nil, err
	}
	inputs, err := readInputs(def.GetSpec(), src.Inputs)
	if err != nil {
		return nil, err
	}
	// Report missing inputs and wrong types before the job starts.
	if _, err := lang.Bind(def.GetSpec(), inputs); err != nil {
		return nil, fmt.Errorf("%s: %w", src.Name, err)
	}
	return NewJob(Given{
		Steps: string(src.Text),
		Config: engine.Config{
			Definition: def, Places: lang.NewLocator(src.Name, src.Text), Inputs: inputs, Vars: src.Vars,
		},
	}), nil
}

// readGitLabCI reads the builds of a job of a .gitlab-ci.yml.
func readGitLabCI(src Source, builds func(f *gitlabci.File, name string) ([]string, error)) ([]*Job, error) {
	file, err := openGitLabCI(src)
	if err != nil {
		return nil, err
	}
	name := src.JobName
	if name == "" {
		jobs := file.Jobs()
		if len(jobs) == 0 {
			return nil, fmt.Errorf("%s has no job that can run: their names all begin with a dot", src.Name)
		}
		if len(jobs) != 1 {
			return nil, fmt.Errorf("%s has %d jobs; choose one with --job-name: %s", src.Name, len(jobs), lang.QuoteNames(jobs))
		}
		name = jobs[0]
	}
	names, err := builds(file, name)
	if err != nil {
		return nil, err
	}
	var all []*Job
	for _, name := range names {
		job, err := file.Job(name)
		if err != nil {
			return nil, err
		}
		j, err := fromGitLabCI(src, job)
		if err != nil {
			return nil, err
		}
		all = append(all, j)
	}
	return all, nil
}

// fromGitLabCI returns a compiled job of src, a .gitlab-ci.yml.
func fromGitLabCI(src Source, job *gitlabci.Job) (*Job, error) {
	flags := map[string]engine.Variable{}
	for _, v := range src.Vars {
		flags[v.Key] = v
	}
	given := Given{Notices: job.Notices, Warnings: Problems(job.Warnings), Container: job.Container}
	given.Config = engine.Config{Definition: job.Definition, Places: job.Places, MayFail: job.MayFail}
	j := NewJob(given)
	j.name = job.Name
	for _, v := range job.Variables {
		given := flags[v.Name]
		j.Vars = append(j.Vars, engine.Variable{Key: v.Name, Value: v.Value, Masked: given.Masked, File: given.File})
	}
	if job.Script {
		j.Env = map[string]string{}
		for _, v := range job.Variables {
			if !flags[v.Name].File { // the script has the path, as one of the variables
				j.Env[v.Name] = v.Value
			}
		}
		if err := lang.CheckEnv("variables", j.Env); err != nil {
			return nil, fmt.Errorf("%s: %w", src.Name, err)
		}
	}
	return j, nil
}

// openGitLabCI reads a .gitlab-ci.yml. Files that it includes are below the work directory, or below src.Includes.
func openGitLabCI(src Source) (*gitlabci.File, error) {
	ask, err := src.questions()
	if err != nil {
		return nil, err
	}
	cfg := gitlabci.Config{
		Open: ask.Open, Other: ask.Other, List: ask.List, Changed: ask.Changed, ProjectDir: src.WorkDir, Matrix: src.Matrix,
		InContainer: src.InContainer, Colours: src.Colours, Skip: src.Skip, Given: plainVars(src.Vars), Inputs: src.Inputs,
		Predefined: append(slices.Clip(src.Predefined), gitlabci.Variable{Name: "CI", Value: "true"},
			gitlabci.Variable{Name: "CI_PROJECT_NAME", Value: filepath.Base(src.WorkDir)}),
	}
	if src.Elsewhere {
		cfg.ProjectDir = ""
	}
	return gitlabci.Read(src.Name, src.Text, cfg)
}

// questions returns the functions by which reading src asks.
func (src Source) questions() (q answers.Questions, err error) {
	if src.Answers != nil {
		return src.Answers.Questions(), nil
	}
	if q.Open, err = filesIn("work directory", src.WorkDir); err != nil {
		return q, err
	}
	if src.Includes != "" {
		if q.Other, err = filesIn("directory for includes", src.Includes); err != nil {
			return q, err
		}
	}
	q.List, q.Changed = func() ([]string, error) { return listFiles(src) }, src.Changed
	return q, nil
}

// Learn lets src have the answers for which reading it asks. The caller calls Close of the set that it returns.
func (src *Source) Learn() (*answers.Set, error) {
	ask, err := src.questions()
	if err != nil {
		return nil, err
	}
	src.Answers = answers.Learn(ask)
	return src.Answers, nil
}

func plainVars(vars []engine.Variable) []gitlabci.Variable {
	plain := make([]gitlabci.Variable, len(vars))
	for i, v := range vars {
		plain[i] = gitlabci.Variable{Name: v.Key, Value: v.Value}
	}
	return plain
}

// maxFiles bounds the files and directories of a project that are compared with patterns.
const maxFiles = 200_000

// listFiles returns the slash-separated paths of the files of the project, in order. Links count as files, and .git is
// left out.
func listFiles(src Source) (paths []string, err error) {
	left := map[string]bool{}
	if src.Ignored != nil {
		ignored, _ := src.Ignored() // nil without git: then nothing is ignored
		for _, name := range ignored {
			left[name] = true
		}
	}
	count := 0
	// Not filepath.WalkDir, which does not follow the directory if it is a link.
	err = fs.WalkDir(os.DirFS(src.WorkDir), ".", func(name string, entry fs.DirEntry, err error) error {
		if count++; count > maxFiles {
			return fmt.Errorf("the work directory has more than %d files", maxFiles)
		}
		switch {
		case err != nil && name == ".":
			return err
		case err != nil:
			return fs.SkipDir // we may not read it
		case entry.IsDir() && (entry.Name() == ".git" || left[name+"/"]):
			return fs.SkipDir
		case entry.IsDir(), left[name]:
			return nil
		}
		paths = append(paths, name)
		return nil
	})
	return paths, err
}

// filesIn returns a function that reads the files of a directory. label names the directory in errors.
func filesIn(label, dir string) (read func(path string) ([]byte, error), err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", label, err)
	}
	root.Close()
	return func(path string) ([]byte, error) {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return nil, err
		}
		defer root.Close()
		data, err := readRegular(root.OpenFile, path)
		if errors.Is(err, fs.ErrNotExist) { // name the directory: it may be the wrong one
			err = fmt.Errorf("the %s %s has no such file", label, dir)
		}
		return data, err
	}, nil
}
