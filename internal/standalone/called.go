package standalone

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/stepmux/stepmux/internal/standalone/answers"
	"github.com/stepmux/stepmux/pipeline"
	"github.com/stepmux/stepmux/remote/step/action"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// maxCalls bounds the workflows that call each other, the first one included, as on GitHub.
const maxCalls = 10

// called is a workflow that another one calls.
type called struct {
	*action.Workflow
	src Source
	err error
}

// Missing returns the references of workflows that jobs call, directly or by others, and that Source.Answers does not
// have: at least one if there are some. Read tells other errors.
func (w *Workflow) Missing() (references []string) {
	_ = w.CheckCalls()
	for reference, c := range w.calls {
		if errors.Is(c.err, answers.ErrUnknown) {
			references = append(references, reference)
		}
	}
	return references
}

// CheckCalls checks the calls of all jobs; see CheckCall.
func (w *Workflow) CheckCalls() error {
	for _, j := range w.Jobs {
		if err := w.CheckCall(j); err != nil {
			return err
		}
	}
	return nil
}

// CheckCall reads the workflow that a job calls, if it does, and those that this one calls. An error names the place
// of a call. Without Source.Fetch, only those of the project are read.
func (w *Workflow) CheckCall(j *action.Job) error {
	of, is := w.uses(j)
	if !is || of.Repository != "" && w.src.Fetch == nil && w.src.Answers == nil {
		return nil
	}
	c, err := w.find(j)
	if err != nil {
		return err
	}
	if slices.Contains(w.chain, of.Text) {
		return fmt.Errorf("%s: the workflow %.160s calls itself, directly or by others", j.UsesPlace(), of.Text)
	}
	if w.called += len(c.Jobs); w.called > pipeline.MaxNodes { // else the check itself would have no end
		return fmt.Errorf("%s: the workflows that the workflow calls have more than %d jobs", j.UsesPlace(),
			pipeline.MaxNodes)
	}
	inner := &Workflow{
		Workflow: c.Workflow, src: c.src, calls: w.calls, depth: w.depth + 1, chain: append(slices.Clip(w.chain), of.Text),
		called: w.called,
	}
	err = inner.CheckCalls()
	w.called = inner.called
	return err
}

// uses returns the workflow that a job calls. is is false for a job with steps.
func (w *Workflow) uses(j *action.Job) (of action.Uses, is bool) {
	of, is = j.Uses()
	return of.From(w.src.Repository), is
}

// find returns the workflow that a job calls. Each is read once.
func (w *Workflow) find(j *action.Job) (*called, error) {
	of, _ := w.uses(j)
	if w.depth+1 >= maxCalls {
		return nil, fmt.Errorf("%s: %.160s: more than %d workflows call each other", j.UsesPlace(), of.Text, maxCalls)
	}
	c := w.calls[of.Text]
	if c == nil {
		c = w.read(of)
		w.calls[of.Text] = c
	}
	err := c.err
	if err == nil {
		err = j.CheckCall(c.Workflow)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", j.UsesPlace(), err)
	}
	return c, nil
}

// read reads a workflow that is called.
func (w *Workflow) read(of action.Uses) *called {
	c := &called{src: w.src}
	c.src.Name, c.src.Inputs, c.src.Needs = of.Path, nil, nil
	if c.src.Text, c.src.commit, c.err = w.text(of); c.err != nil {
		return c
	}
	if of.Repository != "" {
		c.src.Name, c.src.Repository = of.Text, of.Repository+"@"+of.Rev
	}
	c.Workflow, c.err = action.ReadWorkflow(c.src.Name, c.src.Text)
	return c
}

// text returns the text of a workflow that is called, and the commit of its repository.
func (w *Workflow) text(of action.Uses) (text []byte, commit string, err error) {
	ask := func() (text []byte, err error) {
		text, commit, err = w.open(of)
		return text, err
	}
	if w.src.Answers == nil {
		text, err = ask()
		return text, commit, err
	}
	if text, err = w.src.Answers.Read(of.Text, ask); err != nil || of.Repository == "" {
		return text, "", err
	}
	known, err := w.src.Answers.Read(of.Text+commitMark, func() ([]byte, error) { return []byte(commit), nil })
	if err != nil { // an older program has submitted the pipeline
		known = nil
	}
	return text, string(known), nil
}

// commitMark, after the reference of a workflow, names the answer with the commit.
const commitMark = " commit"

// open reads a workflow that is called.
func (w *Workflow) open(of action.Uses) (text []byte, commit string, err error) {
	dir := w.src.WorkDir
	if url := of.URL(); url != "" {
		if w.src.Fetch == nil {
			return nil, "", fmt.Errorf("the workflow %.160s is not fetched here", of.Text)
		}
		fetched, sum, release, err := w.src.Fetch(of)
		if err != nil {
			return nil, "", fmt.Errorf("fetch the workflow %.160s: %w", of.Text, err)
		}
		defer release()
		dir, commit = fetched, sum
	}
	text, err = readBelow(dir, of.Path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, "", fmt.Errorf("there is no workflow %.160s", of.Text)
	}
	return text, commit, err
}

// Call returns the workflow that a build of a job calls, with the values that the build gives to it.
func (w *Workflow) Call(j *action.Job, v action.Values, b *action.Build) (*Workflow, error) {
	c, err := w.find(j)
	if err != nil {
		return nil, err
	}
	given, err := j.Call(v, b)
	if err != nil {
		return nil, err
	}
	inner := w.inner(c)
	inner.src.Vars = slices.DeleteFunc(slices.Clone(w.Caller(w.src.Vars)), func(v engine.Variable) bool {
		return v.Masked && !slices.Contains(ownTokens, v.Key) && !given.Inherit
	})
	for name, text := range given.Secrets {
		inner.src.Vars = append(inner.src.Vars, engine.Variable{Key: name, Value: text, Masked: true})
	}
	if inner.inputs, err = c.Given(given, inner.Values(nil, false)); err != nil {
		return nil, fmt.Errorf("%s: %.160s: %w", j.UsesPlace(), c.src.Name, err)
	}
	return inner, nil
}

// ownTokens are the variables with the tokens of a run, which are masked in each job.
var ownTokens = []string{"GITHUB_TOKEN", "GITEA_RUNTIME_TOKEN"}

// Called returns the workflow that a job calls, without its inputs and secrets: to list its jobs.
func (w *Workflow) Called(j *action.Job) (*Workflow, error) {
	c, err := w.find(j)
	if err != nil {
		return nil, err
	}
	return w.inner(c), nil
}

func (w *Workflow) inner(c *called) *Workflow {
	return &Workflow{Workflow: c.Workflow, src: c.src, calls: w.calls, depth: w.depth + 1}
}

// CallOutputs returns the outputs of a workflow that was called. jobs are the outcomes of its jobs.
func (w *Workflow) CallOutputs(jobs map[string]action.Outcome) (map[string]string, error) {
	return w.Outputs(w.Values(nil, false), jobs)
}
