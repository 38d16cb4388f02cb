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

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/standalone/gitlabci"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/lang"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// Format is how a text says what to run.
type Format string

// The formats.
const (
	Steps    Format = "steps"     // a job's steps, or the definition of a step
	GitLabCI Format = "gitlab-ci" // a .gitlab-ci.yml
	JSON     Format = "json"      // steps, in JSON
)

// ParseFormat returns the format of text, or that of the file name if text is empty.
func ParseFormat(text, name string) (Format, error) {
	switch f := Format(text); f {
	case Steps, GitLabCI:
		return f, nil
	case "":
		if base := filepath.Base(name); base == ".gitlab-ci.yml" || base == ".gitlab-ci.yaml" ||
			strings.HasSuffix(base, ".gitlab-ci.yml") || strings.HasSuffix(base, ".gitlab-ci.yaml") {
			return GitLabCI, nil
		}
		return Steps, nil
	default:
		return "", fmt.Errorf("format %.64q: use steps or gitlab-ci", text)
	}
}

// Source is a text that says what to run, and what the caller adds to it.
type Source struct {
	// Name is what errors call the text.
	Name   string
	Text   []byte
	Format Format
	// JobName is the job of a .gitlab-ci.yml. It may be empty if there is just one.
	JobName string
	// Inputs are values for the inputs that the spec of steps has: a text as it is, all other types as JSON.
	Inputs map[string]string
	// Vars are job variables. They come before those of a .gitlab-ci.yml.
	Vars []engine.Variable
	// WorkDir is the directory the job will run in, in which a .gitlab-ci.yml finds what it includes.
	WorkDir string
}

// Job is what to run.
type Job struct {
	// Notices are lines about what will not be as the source says.
	Notices []string

	name       string // in a .gitlab-ci.yml
	definition *pb.Definition
	inputs     map[string]expr.Value
	vars       []engine.Variable
	env        map[string]string // of all steps
	mayFail    []string
	secrets    []string // beside masked variables
	runnerEnv  []string // if not nil, in the place of that of this process

	// Where it came from, for a trace.
	source trace.Source
	text   []byte
	steps  string // compiles to definition; may be empty
}

// Read reads what src says. An error is one of the text, or of what was added to it.
func Read(src Source) (*Job, error) {
	read := readSteps
	if src.Format == GitLabCI {
		read = readGitLabCI
	}
	j, err := read(src)
	if err != nil {
		return nil, err
	}
	j.source, j.text = sourceOf(src, j.name), src.Text
	for _, v := range j.vars {
		if v.Masked && v.Value != "" {
			if err := new(mask.Set).Add(v.Value); err != nil {
				j.Notices = append(j.Notices, fmt.Sprintf("the variable %s is not masked: %v", v.Key, err))
			}
		}
	}
	return j, nil
}

// sourceOf is src, in which the job is called name, as a trace has it.
func sourceOf(src Source, name string) trace.Source {
	sum := sha256.Sum256(src.Text)
	s := trace.Source{Kind: trace.FromFile, JobName: name, Digest: trace.Digest{trace.SHA256: hex.EncodeToString(sum[:])}}
	switch {
	case src.Format == GitLabCI:
		s.Kind = trace.FromGitLabCI
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
		return nil, fmt.Errorf("job %.64q: a list of steps has no jobs; the format gitlab-ci has", src.JobName)
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
	// What is missing, or of another type, is to be said now.
	if _, err := lang.Bind(def.GetSpec(), inputs); err != nil {
		return nil, fmt.Errorf("%s: %w", src.Name, err)
	}
	return &Job{definition: def, inputs: inputs, vars: src.Vars, steps: string(src.Text)}, nil
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
	name := src.JobName
	if name == "" {
		jobs := file.Jobs()
		if len(jobs) != 1 {
			return nil, fmt.Errorf("%s has %d jobs; choose one with --job-name: %s", src.Name, len(jobs), list(jobs))
		}
		name = jobs[0]
	}
	given := make([]gitlabci.Variable, len(src.Vars))
	for i, v := range src.Vars {
		given[i] = gitlabci.Variable{Name: v.Key, Value: v.Value}
	}
	job, err := file.Job(name, predefined(src.WorkDir), given...)
	if err != nil {
		return nil, err
	}
	j := &Job{name: name, definition: job.Definition, mayFail: job.MayFail, Notices: job.Notices}
	for _, v := range job.Variables {
		j.vars = append(j.vars, engine.Variable{Key: v.Name, Value: v.Value, Masked: isMasked(src.Vars, v.Name)})
	}
	if job.Script {
		j.env = map[string]string{}
		for _, v := range job.Variables {
			j.env[v.Name] = v.Value
		}
		if err := lang.CheckEnv("variables", j.env); err != nil {
			return nil, fmt.Errorf("%s: %w", src.Name, err)
		}
	}
	return j, nil
}

// openGitLabCI reads the file itself. What it includes it finds in the work directory, and not beyond.
func openGitLabCI(src Source) (*gitlabci.File, error) {
	root, err := os.OpenRoot(src.WorkDir)
	if err != nil {
		return nil, fmt.Errorf("open work directory: %w", err)
	}
	defer root.Close()
	return gitlabci.Read(src.Name, src.Text, func(path string) ([]byte, error) {
		data, err := readIn(root, path)
		if errors.Is(err, fs.ErrNotExist) { // the file itself may have its own elsewhere
			err = fmt.Errorf("the work directory %s has no such file", src.WorkDir)
		}
		return data, err
	})
}

// predefined are the variables that a job has which a server knows nothing of.
func predefined(workDir string) []gitlabci.Variable {
	return []gitlabci.Variable{
		{Name: "CI", Value: "true"},
		{Name: "CI_PROJECT_DIR", Value: workDir},
		{Name: "CI_PROJECT_NAME", Value: filepath.Base(workDir)},
	}
}

func isMasked(vars []engine.Variable, name string) bool {
	for _, v := range vars {
		if v.Key == name {
			return v.Masked
		}
	}
	return false
}

// list is names in a line, of which many are cut.
func list(names []string) string {
	const most = 20
	more := ""
	if len(names) > most {
		more = fmt.Sprintf(" and %d more", len(names)-most)
		names = names[:most]
	}
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = fmt.Sprintf("%.64q", name)
	}
	return strings.Join(quoted, ", ") + more
}
