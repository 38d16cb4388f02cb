package standalone

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/stepmux/stepmux/remote/standalone/gitlabci"
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

// ParseFormat returns the format called text or, if text is empty, the format of files called name.
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

// Source is the text of a job, and values that the caller adds.
type Source struct {
	// Name is the name of the text in errors.
	Name   string
	Text   []byte
	Format Format
	// JobName is the job of a .gitlab-ci.yml or of a workflow. It may be empty if the file has only one.
	JobName string
	// Inputs are values for the inputs in the spec of steps: strings as they are, all other types as JSON.
	Inputs map[string]string
	// Matrix has the values of a workflow's matrix for this run: JSON, or else texts.
	Matrix map[string]string
	// Vars are job variables. They replace those of a .gitlab-ci.yml.
	Vars []engine.Variable
	// InContainer tells that the caller runs the job in the container that it describes: then no notice is about that.
	InContainer bool
	// WorkDir is the directory of the job. A .gitlab-ci.yml includes files from there.
	WorkDir string
	// Includes is a directory with the files that a .gitlab-ci.yml includes from elsewhere; see [gitlabci.Read]. If empty,
	// they are left out.
	Includes string
}

// Job is a job that can be run: read by [Read], or restored from a trace with [NewJob].
type Job struct {
	Given

	name string // in a .gitlab-ci.yml
	text []byte // of the Source, for a trace
}

// Given has the parts of a job.
type Given struct {
	// Notices are lines about parts of the source that do not apply here.
	Notices []string
	// Source describes the text of the job, for a trace.
	Source trace.Source
	// Config has the job's Definition, Places, Inputs, Vars, Env and MayFail. RunnerEnv replaces the environment of this
	// process, of which few variables reach a step; if nil, it does not. [Run] sets the rest.
	engine.Config
	// Steps is a text that compiles to Definition. If empty, a trace has one that is made of Definition.
	Steps string
	// Container has the keys image and services of a job of a .gitlab-ci.yml, in YAML; empty if the job has neither.
	Container []byte
	// Secrets are texts that are masked, in addition to the values of masked variables.
	Secrets []string
}

// NewJob returns the job g.
func NewJob(g Given) *Job { return &Job{Given: g} }

// Text returns a text that compiles to the job's definition.
func (j *Job) Text() (string, error) {
	if j.Steps != "" {
		return j.Steps, nil
	}
	return lang.Format(j.Definition)
}

// Read reads the job of src. An error is about the text or the values added to it.
func Read(src Source) (*Job, error) {
	read := readSteps
	switch src.Format { //nolint:exhaustive // the others are steps
	case GitLabCI:
		read = readGitLabCI
	case GitHub:
		read = readGitHub
	}
	if len(src.Matrix) > 0 && src.Format != GitHub {
		return nil, errors.New("a matrix is for a job of a workflow (--format github)")
	}
	j, err := read(src)
	if err != nil {
		return nil, err
	}
	j.Source, j.text = sourceOf(src, j.name), src.Text
	for _, v := range j.Vars {
		if v.Masked && v.Value != "" {
			if err := new(mask.Set).Add(v.Value); err != nil {
				j.Notices = append(j.Notices, fmt.Sprintf("the variable %s is not masked: %v", v.Key, err))
			}
		}
	}
	return j, nil
}

// sourceOf describes src, in which the job is called name, for a trace.
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

// readSteps reads a list of steps, or the definition of one.
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

// readGitLabCI reads a job of a .gitlab-ci.yml.
func readGitLabCI(src Source) (*Job, error) {
	if len(src.Inputs) > 0 {
		return nil, errors.New("inputs are for steps; a job of a .gitlab-ci.yml takes variables")
	}
	file, err := openGitLabCI(src)
	if err != nil {
		return nil, err
	}
	file.InContainer = src.InContainer
	name := src.JobName
	if name == "" {
		jobs := file.Jobs()
		if len(jobs) != 1 {
			return nil, fmt.Errorf("%s has %d jobs; choose one with --job-name: %s", src.Name, len(jobs), gitlabci.List(jobs))
		}
		name = jobs[0]
	}
	predefined := []gitlabci.Variable{
		{Name: "CI", Value: "true"},
		{Name: "CI_PROJECT_DIR", Value: src.WorkDir},
		{Name: "CI_PROJECT_NAME", Value: filepath.Base(src.WorkDir)},
	}
	given := make([]gitlabci.Variable, len(src.Vars))
	masked := map[string]bool{}
	for i, v := range src.Vars {
		given[i] = gitlabci.Variable{Name: v.Key, Value: v.Value}
		masked[v.Key] = v.Masked
	}
	job, err := file.Job(name, predefined, given...)
	if err != nil {
		return nil, err
	}
	j := NewJob(Given{Notices: job.Notices, Container: job.Container, Config: engine.Config{
		Definition: job.Definition, Places: job.Places, MayFail: job.MayFail,
	}})
	j.name = name
	for _, v := range job.Variables {
		j.Vars = append(j.Vars, engine.Variable{Key: v.Name, Value: v.Value, Masked: masked[v.Name]})
	}
	if job.Script {
		j.Env = map[string]string{}
		for _, v := range job.Variables {
			j.Env[v.Name] = v.Value
		}
		if err := lang.CheckEnv("variables", j.Env); err != nil {
			return nil, fmt.Errorf("%s: %w", src.Name, err)
		}
	}
	return j, nil
}

// openGitLabCI reads a .gitlab-ci.yml. Files that it includes are below the work directory, or below src.Includes.
func openGitLabCI(src Source) (*gitlabci.File, error) {
	open, closeDir, err := filesIn("work directory", src.WorkDir)
	if err != nil {
		return nil, err
	}
	defer closeDir()
	if src.Includes == "" {
		return gitlabci.Read(src.Name, src.Text, open, nil)
	}
	other, closeOther, err := filesIn("directory for includes", src.Includes)
	if err != nil {
		return nil, err
	}
	defer closeOther()
	return gitlabci.Read(src.Name, src.Text, open, other)
}

// filesIn returns a function that reads the files of a directory, until the other is called. what describes it.
func filesIn(what, dir string) (read func(path string) ([]byte, error), closeDir func(), err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("open %s: %w", what, err)
	}
	read = func(path string) ([]byte, error) {
		data, err := readRegular(root.OpenFile, path)
		if errors.Is(err, fs.ErrNotExist) { // the file itself may lie elsewhere, with this one beside it
			err = fmt.Errorf("the %s %s has no such file", what, dir)
		}
		return data, err
	}
	return read, func() { root.Close() }, nil
}
