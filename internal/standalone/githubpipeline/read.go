package githubpipeline

import (
	"fmt"
	"strings"

	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/whole"
	"github.com/stepmux/stepmux/internal/standalone/whole/carry"
	"github.com/stepmux/stepmux/pipeline"
	"github.com/stepmux/stepmux/remote/step/action"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// Read reads the pipeline of src, a workflow. JobName and Matrix of src have no effect. An error is about the text, or
// about the values that the caller has added. The notices are about the workflow itself.
func Read(src standalone.Source) (p *whole.Pipeline, notices []string, err error) {
	w, err := standalone.ReadWorkflow(src)
	if err != nil {
		return nil, nil, err
	}
	if p, err = read(w); err != nil {
		return nil, nil, err
	}
	p.GitDepth = w.FetchDepth()
	for i, j := range w.Jobs {
		if err := w.CheckCall(j); err != nil { // the caller may leave the job out
			p.Jobs[i].Open, p.Jobs[i].Below, p.Jobs[i].Trigger = nil, nil, &whole.Trigger{Other: err.Error()}
		}
	}
	return p, append(w.Notices, w.Notes()...), nil
}

// Variables returns the variables of a run of src: those of src, and those of its commit, its event and the run itself.
// A source with these makes the same run, whenever and wherever it is read.
func Variables(src standalone.Source) ([]engine.Variable, error) {
	w, err := standalone.ReadWorkflow(src)
	if err != nil {
		return nil, err
	}
	return w.Values(nil, false).Vars, nil
}

// read returns the pipeline of a workflow.
func read(w *standalone.Workflow) (p *whole.Pipeline, err error) {
	p = &whole.Pipeline{Graph: standalone.GraphOf(w.Workflow)}
	if p.Group, p.CancelInProgress, err = w.Group(w.Values(nil, false)); err != nil {
		return nil, err
	}
	p.Group = strings.ToLower(p.Group)
	for _, j := range w.Jobs {
		job := &whole.Job{
			Name: j.Name, Base: j.Name, When: j.If(), Notices: j.Notes(w.InContainer()), Open: opener{w, j}.open,
			Below: below(w, j),
		}
		if job.Builds, err = known(w, j); err != nil {
			return nil, err
		}
		p.Jobs = append(p.Jobs, job)
	}
	_, err = pipeline.New(p.Graph)
	return p, err
}

// below returns a function that lists the jobs of the workflow that a job calls, or nil.
func below(w *standalone.Workflow, j *action.Job) func() *whole.Pipeline {
	if _, calls := j.Uses(); !calls {
		return nil
	}
	return func() *whole.Pipeline {
		inner, err := w.Called(j)
		if err != nil { // the caller of Read has the error
			return nil
		}
		p := &whole.Pipeline{Graph: standalone.GraphOf(inner.Workflow)}
		for _, j := range inner.Jobs {
			p.Jobs = append(p.Jobs, &whole.Job{Name: j.Name, Base: j.Name, When: j.If(), Below: below(inner, j)})
		}
		return p
	}
}

// known returns the names of the builds of a job, if they do not depend on other jobs.
func known(w *standalone.Workflow, j *action.Job) (names []string, err error) {
	if !j.IsKnown() {
		return nil, nil
	}
	builds, err := j.Builds(w.Values(nil, false))
	if err != nil {
		return nil, err
	}
	for _, b := range builds.List {
		names = append(names, b.Name)
	}
	return names, nil
}

// opener opens a job of a workflow.
type opener struct {
	*standalone.Workflow
	job *action.Job
}

// matrix is the name of the group of all builds of a job.
const matrix = "matrix"

func (j opener) open(before []whole.Before, cancelled bool, say func(string)) (*whole.Opened, error) {
	v := j.Values(outcomes(before), cancelled)
	wanted, why, err := j.job.Wanted(v)
	if err != nil {
		return nil, err
	}
	if !wanted {
		return &whole.Opened{Skip: why, Values: func([]whole.Before) map[string]string {
			result := action.Skipped
			if v.Cancelled {
				result = action.Cancelled
			}
			return encode(j.job.Outcome(v, result, nil))
		}}, nil
	}
	later := v
	later.Cancelled = true
	keeps, _, err := j.job.Wanted(later)
	if err != nil {
		return nil, err
	}
	builds, err := j.job.Builds(v)
	if err != nil {
		return nil, err
	}
	p := &whole.Pipeline{Graph: pipeline.Graph{
		Groups: []pipeline.Group{{Name: matrix, Max: builds.MaxParallel, FailFast: builds.FailFast}},
	}}
	for i := range builds.List {
		if err := j.add(p, v, &builds.List[i], say); err != nil {
			return nil, err
		}
	}
	return &whole.Opened{Builds: p, Keeps: keeps, Values: func(ended []whole.Before) map[string]string {
		result, outputs := merge(ended)
		return encode(j.job.Outcome(v, result, outputs))
	}}, nil
}

// add adds a build to p.
func (j opener) add(p *whole.Pipeline, v action.Values, b *action.Build, say func(string)) error {
	start, err := j.job.Start(v, b)
	if err != nil {
		return err
	}
	job := &whole.Job{
		Name: b.Name, Base: j.job.Name, Timeout: start.Timeout, Group: strings.ToLower(start.Group),
		CancelInProgress: start.CancelInProgress, LateIsCancelled: true,
	}
	if _, calls := j.job.Uses(); calls {
		return j.addCall(p, v, b, job)
	}
	job.Prepare = func([]whole.Before) (*carry.Prepared, error) {
		compiled, err := j.Compile(j.job, v, b)
		if err != nil {
			return nil, err
		}
		for _, text := range compiled.Notices {
			say(text)
		}
		prepared := &carry.Prepared{
			Job: compiled, Outputs: j.job.HasOutputs(), Services: j.job.UsesActions(),
			RunsOn: carry.RunsOn{Key: "runs-on", Labels: start.Labels, Pairs: true, Soft: action.GroupLabel},
		}
		if prepared.Outputs {
			prepared.Values = func(_ string, r *standalone.Report) (map[string]string, error) {
				outputs, masked := r.StepOutputs()
				for _, name := range masked {
					say(fmt.Sprintf("the output %q is left out: it contains a secret", name))
				}
				return outputs, nil
			}
		}
		return prepared, nil
	}
	p.Jobs = append(p.Jobs, job)
	p.Graph.Nodes = append(p.Graph.Nodes, pipeline.Node{
		Name: b.Name, Place: j.job.Place(), Groups: []string{matrix}, MayFail: pipeline.Match{Any: start.MayFail},
	})
	return nil
}

// addCall adds a build that calls another workflow. The jobs of that have slots, not the build.
func (j opener) addCall(p *whole.Pipeline, v action.Values, b *action.Build, job *whole.Job) error {
	inner, err := j.Call(j.job, v, b)
	if err != nil {
		return err
	}
	child, err := read(inner)
	if err != nil {
		return err
	}
	if job.Group == "" {
		job.Group, job.CancelInProgress = child.Group, child.CancelInProgress
	}
	job.Trigger = &whole.Trigger{Child: child, Depend: true, Values: func(jobs []whole.Before) (map[string]string, error) {
		return inner.CallOutputs(outcomes(jobs))
	}}
	p.Jobs = append(p.Jobs, job)
	p.Graph.Nodes = append(p.Graph.Nodes, pipeline.Node{
		Name: b.Name, Place: j.job.Place(), Groups: []string{matrix}, Free: true,
	})
	return nil
}

// merge returns the result and the outputs of a job from those of its builds. As on GitHub, of an output that several
// builds have the last one counts.
func merge(builds []whole.Before) (result string, outputs map[string]string) {
	result, outputs = action.Succeeded, map[string]string{}
	for _, b := range builds {
		for name, text := range b.Values {
			if text != "" {
				outputs[name] = text
			}
		}
		switch r := resultOf(b); r {
		case action.Failed:
			result = r
		case action.Cancelled:
			if result != action.Failed {
				result = r
			}
		}
	}
	return result, outputs
}

// resultOf returns the result of a job or of a build.
func resultOf(b whole.Before) string {
	switch b.State { //nolint:exhaustive // the others have not run
	case pipeline.Succeeded, pipeline.Warned:
		return action.Succeeded
	case pipeline.Cancelled:
		return action.Cancelled
	case pipeline.Failed:
		return action.Failed
	default:
		return action.Skipped
	}
}

// The keys of the values of a job. Those of its outputs begin with ofOutput.
const (
	ofResult = "result"
	ofGood   = "good"
	ofBad    = "bad"
	ofOutput = "output "
)

// encode returns an outcome as values.
func encode(o action.Outcome) map[string]string {
	values := map[string]string{ofResult: o.Result}
	if o.Good {
		values[ofGood] = "true"
	}
	if o.Bad {
		values[ofBad] = "true"
	}
	for name, text := range o.Outputs {
		values[ofOutput+name] = text
	}
	return values
}

// outcomes returns the outcomes of jobs. One that ended without values could not open, or was cancelled before.
func outcomes(before []whole.Before) map[string]action.Outcome {
	all := make(map[string]action.Outcome, len(before))
	for _, b := range before {
		o := action.Outcome{
			Result: b.Values[ofResult], Good: b.Values[ofGood] != "", Bad: b.Values[ofBad] != "",
			Outputs: map[string]string{},
		}
		if o.Result == "" {
			o.Result = resultOf(b)
			o.Bad = o.Result == action.Failed
		}
		for key, text := range b.Values {
			if name, ok := strings.CutPrefix(key, ofOutput); ok {
				o.Outputs[name] = text
			}
		}
		all[b.Name] = o
	}
	return all
}
