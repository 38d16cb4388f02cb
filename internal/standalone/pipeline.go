package standalone

import (
	"errors"
	"maps"
	"slices"

	"github.com/stepmux/stepmux/internal/standalone/gitlabci"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// Pipeline is the pipeline of a .gitlab-ci.yml, whose jobs run in directories of their own.
type Pipeline struct {
	*gitlabci.Pipeline
	src Source
}

// ReadPipeline reads the pipeline of src, a .gitlab-ci.yml. JobName and Matrix of src have no effect. An error is about
// the text, or about the values that the caller has added.
func ReadPipeline(src Source) (*Pipeline, error) {
	if src.Format != GitLabCI {
		return nil, errors.New("only a .gitlab-ci.yml has a whole pipeline that runs here (--format gitlab-ci)")
	}
	src.JobName, src.Matrix, src.Elsewhere = "", nil, true
	file, err := openGitLabCI(src)
	if err != nil {
		return nil, err
	}
	p, err := file.Pipeline()
	if err != nil {
		return nil, err
	}
	return &Pipeline{p, src}, lang.CheckEnv("env", src.Env)
}

// Variable returns the value of a predefined variable, or that which the caller has given for it. It may be empty.
func (p *Pipeline) Variable(name string) string {
	if value := variable(p.src.Vars, name); value != "" {
		return value
	}
	for _, v := range slices.Backward(p.src.Predefined) {
		if v.Name == name {
			return v.Value
		}
	}
	return ""
}

// Compile returns a job of the pipeline, and its form in the language of a .gitlab-ci.yml. values are variables that
// earlier jobs have reported.
func (p *Pipeline) Compile(i int, values map[string]string) (*Job, *gitlabci.Job, error) {
	compiled, err := p.Job(i, variables(values))
	if err != nil {
		return nil, nil, err
	}
	j, err := fromGitLabCI(p.src, compiled)
	if err != nil {
		return nil, nil, err
	}
	j.complete(p.src)
	return j, compiled, nil
}

func variables(values map[string]string) (list []gitlabci.Variable) {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		list = append(list, gitlabci.Variable{Name: name, Value: values[name]})
	}
	return list
}

// MadeChild returns the child pipeline that a job starts, of files that other jobs have made.
func (p *Pipeline) MadeChild(
	i int, values map[string]string, artifact gitlabci.ReadArtifact,
) (*Pipeline, error) {
	child, err := p.Made(i, variables(values), artifact)
	if err != nil {
		return nil, err
	}
	return &Pipeline{child, p.src}, nil
}

// Child returns the child pipeline that a job starts, or nil.
func (p *Pipeline) Child(i int) *Pipeline {
	if t := p.Jobs[i].Trigger; t != nil && t.Child != nil {
		return &Pipeline{t.Child, p.src}
	}
	return nil
}
