package standalone

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/sortedkeys"
	"github.com/stepmux/stepmux/pipeline"
	"github.com/stepmux/stepmux/remote/step/action"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// Workflow is a workflow of GitHub Actions, whose jobs run in directories of their own.
type Workflow struct {
	*action.Workflow
	// Notices are about inputs without a value, and about variables that cannot be masked.
	Notices []string

	src    Source
	inputs map[string]any
	calls  map[string]*called // by the references of the calls; all workflows of a run have the same
	depth  int                // how many workflows are above it
	called int                // for CheckCall: the jobs of the workflows that were found
	chain  []string           // for CheckCall: the references of those workflows, except the first
}

// ReadWorkflow reads the workflow of src. JobName and Matrix of src have no effect. An error is about the text, or
// about the values that the caller has added.
func ReadWorkflow(src Source) (*Workflow, error) {
	if src.Format != GitHub {
		return nil, errors.New("only a workflow of GitHub has a whole workflow that runs here (--format github)")
	}
	read, err := action.ReadWorkflow(src.Name, src.Text)
	if err != nil {
		return nil, err
	}
	if src.lock, err = src.readLock(); err != nil {
		return nil, err
	}
	for _, j := range read.Jobs {
		j.NeedAlso(sortedkeys.Of(src.Needs))
	}
	w := &Workflow{Workflow: read, src: src, calls: map[string]*called{}}
	if w.inputs, w.Notices, err = read.Jobs[0].Inputs(src.Inputs); err != nil {
		return nil, err
	}
	w.chooseEvent()
	if w.src.Vars, err = gitHubVars(w.src, w.inputs); err != nil {
		return nil, err
	}
	if variable(w.src.Vars, "GITHUB_RUN_ID") == "" {
		id := strconv.FormatInt(time.Now().UnixMilli(), 10)
		w.src.Vars = append(w.src.Vars, engine.Variable{Key: "GITHUB_RUN_ID", Value: id})
	}
	of := NewJob(Given{Config: engine.Config{Vars: w.src.Vars}})
	of.complete(w.src)
	w.Notices = append(w.Notices, of.Notices...)
	return w, lang.CheckEnv("env", src.Env)
}

// GraphOf returns the graph of a workflow. It has a node for each job, in the same order.
func GraphOf(w *action.Workflow) (g pipeline.Graph) {
	for _, j := range w.Jobs {
		node := pipeline.Node{Name: j.Name, Place: j.Place(), When: pipeline.Asked, Free: true}
		for _, name := range j.Needs() {
			if w.Job(name) == nil { // it ran elsewhere
				continue
			}
			node.Needs = append(node.Needs, pipeline.Need{Name: name, Edge: pipeline.Control | pipeline.Values})
		}
		g.Nodes = append(g.Nodes, node)
	}
	return g
}

// madeEvents are the events whose payload can be made from a commit, the preferred one first.
var madeEvents = []string{"push", "pull_request", "workflow_dispatch", "schedule"}

// chooseEvent sets the event that starts the workflow, unless the caller has.
func (w *Workflow) chooseEvent() {
	if name := w.src.Event; name != "" {
		if len(w.Events) > 0 && !slices.Contains(w.Events, name) {
			w.Notices = append(w.Notices, fmt.Sprintf("the event %s does not start this workflow on GitHub; its events are %s",
				name, lang.QuoteNames(w.Events)))
		}
		return
	}
	if w.src.Event = variable(w.src.Vars, eventNameVariable); w.src.Event != "" {
		return
	}
	w.src.Event = madeEvents[0]
	for _, name := range madeEvents {
		if slices.Contains(w.Events, name) {
			w.src.Event = name
			return
		}
	}
}

// Values returns the values for a job of the workflow. needs has the outcomes of the jobs that it needs.
func (w *Workflow) Values(needs map[string]action.Outcome, cancelled bool) action.Values {
	if len(w.src.Needs) > 0 {
		all := maps.Clone(w.src.Needs)
		maps.Copy(all, needs)
		needs = all
	}
	return action.Values{Inputs: w.inputs, Vars: w.src.Vars, Needs: needs, Cancelled: cancelled}
}

// Compile returns a build of a job.
func (w *Workflow) Compile(job *action.Job, v action.Values, b *action.Build) (*Job, error) {
	j, err := gitHubJob(w.src, job, gitHubRun{
		inputs: v.Inputs, matrix: b.Matrix, needs: job.NeedsContext(v), strategy: b.Strategy, inWorkflow: true,
	})
	if err != nil {
		return nil, err
	}
	j.complete(w.src)
	return j, nil
}

// FetchDepth returns the largest depth of a history for which the steps with actions/checkout ask, also those of called
// workflows that are known: a number, or "all" if one of them is known only when the job runs.
func (w *Workflow) FetchDepth() string {
	var text struct {
		Jobs map[string]struct {
			Steps []struct {
				Uses string         `yaml:"uses"`
				With map[string]any `yaml:"with"`
			} `yaml:"steps"`
		} `yaml:"jobs"`
	}
	depths := []string{"1"} // that of actions/checkout without fetch-depth
	if yaml.Unmarshal(w.src.Text, &text) == nil {
		for _, job := range text.Jobs {
			for _, step := range job.Steps {
				for name, value := range step.With {
					if strings.HasPrefix(strings.ToLower(step.Uses), "actions/checkout@") && strings.EqualFold(name, "fetch-depth") {
						depths = append(depths, fmt.Sprint(value))
					}
				}
			}
		}
	}
	for _, j := range w.Jobs {
		if _, calls := j.Uses(); calls {
			if inner, err := w.Called(j); err == nil {
				depths = append(depths, inner.FetchDepth())
			}
		}
	}
	largest := 1
	for _, depth := range depths {
		n, err := strconv.Atoi(strings.TrimSpace(depth))
		if err != nil || n <= 0 {
			return "all"
		}
		largest = max(largest, n)
	}
	return strconv.Itoa(largest)
}

// InContainer reports whether the jobs run in the containers that they describe.
func (w *Workflow) InContainer() bool { return w.src.InContainer }
