package action

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/sortedkeys"
	"github.com/stepmux/stepmux/internal/yamltree"
	"github.com/stepmux/stepmux/remote/step/action/expression"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// Values are the values that the expressions of a job can use before it starts.
type Values struct {
	// Inputs are the values of the workflow's inputs. Vars are the job variables; masked ones are secrets.
	Inputs map[string]any
	Vars   []engine.Variable
	// Needs are the outcomes of the jobs that the job needs. One that is missing was left out of the run.
	Needs map[string]Outcome
	// Cancelled says that the run was cancelled.
	Cancelled bool
}

// The results of a job.
const (
	Succeeded = success
	Failed    = failure
	Cancelled = cancelled
	Skipped   = skipped
)

// Outcome is how a job has ended.
type Outcome struct {
	// Result is one of the results.
	Result string
	// Outputs are the outputs without those that have secrets.
	Outputs map[string]string
	// Good says that the job has succeeded, and all jobs that it needs, directly or by others. Bad says that one of them
	// has failed.
	Good, Bad bool
}

// Outcome returns the outcome of the job.
func (j *Job) Outcome(v Values, result string, outputs map[string]string) Outcome {
	return Outcome{
		Result: result, Outputs: outputs, Good: result == Succeeded && v.good(), Bad: result == Failed || v.bad(),
	}
}

func (v *Values) good() bool {
	for _, o := range v.Needs {
		if !o.Good {
			return false
		}
	}
	return true
}

func (v *Values) bad() bool {
	for _, o := range v.Needs {
		if o.Bad {
			return true
		}
	}
	return false
}

// Place is the place of the job in its text, as file:line:column.
func (j *Job) Place() string { return fmt.Sprintf("%s:%d:%d", j.file, j.at.Line, j.at.Column) }

// need is an entry of needs.
type need struct {
	name string
	at   *yaml.Node
}

// readNeeds reads the needs of a job: a name or a list of names.
func (r *reader) readNeeds(p yamltree.Entry) (list []need) {
	items := []*yaml.Node{p.Value}
	if r.Err == nil && r.Value(p.Value).Kind == yaml.SequenceNode {
		items = r.List(p.Value, p.Key)
	}
	for _, item := range items {
		list = append(list, need{r.text(item, "a need"), item})
	}
	return list
}

// Needs returns the names of the jobs that the job needs.
func (j *Job) Needs() []string {
	names := make([]string, len(j.needs))
	for i, n := range j.needs {
		names[i] = n.name
	}
	return names
}

// NeedAlso makes the job need jobs that are not in its workflow.
func (j *Job) NeedAlso(names []string) {
	j.needs = slices.Clip(j.needs)
	for _, name := range names {
		j.needs = append(j.needs, need{name, j.at})
	}
}

// If returns the if of the job. It may be empty.
func (j *Job) If() string { return j.when.text }

// NeedsContext returns the context needs.
func (j *Job) NeedsContext(v Values) map[string]any {
	all := map[string]any{}
	for _, name := range j.Needs() {
		o := v.Needs[name]
		outputs := map[string]any{}
		for key, text := range o.Outputs {
			outputs[key] = text
		}
		if o.Result == "" {
			o.Result = Skipped
		}
		all[name] = map[string]any{"result": o.Result, "outputs": outputs}
	}
	return all
}

// evaluator returns an evaluator for the keys of the job. b is nil before its strategy is known.
func (j *Job) evaluator(v Values, b *Build) evaluator {
	var matrix map[string]any
	if b != nil {
		matrix = b.Matrix
	}
	scope := j.scope(matrix, v.Inputs, v.Vars)
	scope.Values["needs"] = expression.New(j.NeedsContext(v))
	if b != nil {
		scope.Values["strategy"] = expression.New(b.Strategy)
	}
	return evaluator{file: j.file, scope: scope}
}

// Wanted evaluates the if of the job. If the job does not run, why says the reason in a few words.
func (j *Job) Wanted(v Values) (wanted bool, why string, err error) {
	text, asks, holds := bare(j.when.text), false, true
	succeeded := !v.Cancelled && v.good()
	if text != "" {
		scope := j.evaluator(v, nil).scope
		is := func(b bool) expression.Function {
			return expression.Function{Call: func([]expression.Value) (expression.Value, error) {
				return expression.Boolean(b), nil
			}}
		}
		scope.Functions = map[string]expression.Function{
			"success": j.status(v, succeeded, Succeeded), "failure": j.status(v, !v.Cancelled && v.bad(), Failed),
			"always": is(true), "cancelled": is(v.Cancelled),
		}
		if holds, asks, err = evaluateIf(text, scope); err != nil {
			return false, "", fmt.Errorf("%s:%d: %w", j.file, j.when.line, err)
		}
	}
	switch {
	case holds && (asks || succeeded):
		return true, "", nil
	case v.Cancelled:
		return false, Cancelled, nil
	case asks || succeeded:
		return false, "its if is false", nil
	}
	for _, name := range j.Needs() {
		if o, there := v.Needs[name]; there && o.Result != Succeeded {
			return false, fmt.Sprintf("%.64q: %s", name, o.Result), nil
		}
	}
	return false, "a job before its needs has not succeeded", nil
}

// status returns the function success or failure. Without arguments it returns without. With the names of needed jobs,
// success holds if all of them have the result, and failure if one has it.
func (j *Job) status(v Values, without bool, result string) expression.Function {
	call := func(args []expression.Value) (expression.Value, error) {
		if len(args) == 0 {
			return expression.Boolean(without), nil
		}
		count := 0
		for _, arg := range args {
			name := arg.Text()
			if !slices.Contains(j.Needs(), name) {
				return expression.Value{}, fmt.Errorf("the job has no need %.64q", name)
			}
			if v.Needs[name].Result == result {
				count++
			}
		}
		return expression.Boolean(count == len(args) || result == Failed && count > 0), nil
	}
	return expression.Function{Max: math.MaxInt, Call: call}
}

// Start has the keys of a job that are read when a build starts.
type Start struct {
	// MayFail is continue-on-error.
	MayFail bool
	// Timeout bounds the build. It is zero if the job has no timeout-minutes.
	Timeout time.Duration
	// Group is the group of its concurrency, of which one build runs at once and one waits. It is empty if there is none.
	// CancelInProgress says that the build stops the one that runs.
	Group            string
	CancelInProgress bool
	// Labels are those of runs-on.
	Labels []string
}

// Start reads the keys for a build that starts.
func (j *Job) Start(v Values, b *Build) (s Start, err error) {
	e := j.evaluator(v, b)
	for _, key := range sortedkeys.Of(j.atStart) {
		if err := s.read(&e, key, j.atStart[key]); err != nil {
			return s, err
		}
	}
	return s, nil
}

// read reads a key.
func (s *Start) read(e *evaluator, key string, t *tree) (err error) {
	switch key {
	case "continue-on-error":
		s.MayFail, err = e.boolean(t, key, false)
	case "timeout-minutes":
		var minutes float64
		minutes, err = e.number(t, key, 0)
		s.Timeout = time.Duration(min(minutes, maxMinutes) * float64(time.Minute))
	case "runs-on":
		s.Labels, err = e.labels(t)
	case "concurrency":
		s.Group, s.CancelInProgress, err = e.concurrency(t)
	}
	return err
}

// maxMinutes bounds timeout-minutes.
const maxMinutes = 1e6

// Timeout returns the limit of a job that runs by itself. It is zero without timeout-minutes.
func (j *Job) Timeout(v Values, matrix map[string]any) (time.Duration, error) {
	const key = "timeout-minutes"
	t := j.atStart[key]
	if t == nil {
		return 0, nil
	}
	e := j.evaluator(v, &Build{Matrix: matrix})
	var s Start
	err := s.read(&e, key, t)
	return s.Timeout, err
}

// LabelNotes returns a note if the job names labels of machines that not each VM has, for a job that runs by itself:
// there these have no effect.
func (j *Job) LabelNotes(v Values, matrix map[string]any) []string {
	t := j.atStart["runs-on"]
	if t == nil {
		return nil
	}
	e := j.evaluator(v, &Build{Matrix: matrix})
	labels, err := e.labels(t)
	if err != nil {
		return nil // the values of other jobs are missing
	}
	labels = slices.DeleteFunc(labels, func(label string) bool { return label == "" || IsCommonLabel(label) })
	if len(labels) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s:%d: runs-on has no effect for one job: choose its VM by a label (--select of run, "+
		"--label of submit), or add --needs", j.file, t.line)}
}

// IsCommonLabel reports whether all machines with Linux have a label of runs-on by nature.
func IsCommonLabel(label string) bool {
	l := strings.ToLower(label)
	return l == "self-hosted" || l == "linux" || strings.HasPrefix(l, "ubuntu-")
}

// GroupLabel is the name of the label that stands for the group of runs-on.
const GroupLabel = "group"

// labels returns the labels of runs-on: one, a list, or those of a mapping.
func (e *evaluator) labels(t *tree) (labels []string, err error) {
	v, err := e.value(t, "runs-on")
	if err != nil {
		return nil, err
	}
	if v.Kind() == "Object" {
		given := v.Properties()
		v = expression.New([]any{})
		for name, value := range given {
			switch name {
			case "labels":
				v = value
			case "group":
				labels = append(labels, GroupLabel+"="+value.Text())
			}
		}
	}
	list, isList := v.Any().([]any)
	if !isList {
		list = []any{v.Any()}
	}
	for _, item := range list {
		label := expression.New(item)
		if kind := label.Kind(); kind == "Array" || kind == "Object" {
			return nil, e.errorf(t, "a label of runs-on must be a text, not %s", described(label))
		}
		labels = append(labels, label.Text())
	}
	return labels, nil
}

// concurrency returns the group of a job, and whether its builds stop the one that runs.
func (e *evaluator) concurrency(t *tree) (group string, cancels bool, err error) {
	v, err := e.value(t, "concurrency")
	if err != nil {
		return "", false, err
	}
	if v.Kind() != "Object" {
		if v.Kind() == "Array" {
			return "", false, e.errorf(t, "concurrency is a group or a mapping, not a list")
		}
		return v.Text(), false, nil
	}
	for name, value := range v.Properties() {
		at := cmp.Or(t.at(name), t)
		switch name {
		case "group":
			group = value.Text()
		case "cancel-in-progress":
			cancels, err = e.boolean(&tree{line: at.line, column: at.column, value: value}, name, false)
		}
	}
	if group == "" && err == nil {
		err = e.errorf(t, "concurrency has no group")
	}
	return group, cancels, err
}

// Group returns the group of the concurrency of the workflow, or an empty text. cancels says that a run stops the one
// that runs.
func (w *Workflow) Group(v Values) (group string, cancels bool, err error) {
	j := w.Jobs[0] // all have it
	if j.group == nil {
		return "", false, nil
	}
	e := j.evaluator(v, nil)
	return e.concurrency(j.group)
}

// checkStart finds mistakes in the keys of a job whose values are in the text.
func (j *Job) checkStart() error {
	e := evaluator{file: j.file}
	for _, key := range sortedkeys.Of(j.atStart) {
		if t := j.atStart[key]; t.isLiteral() {
			if err := new(Start).read(&e, key, t); err != nil {
				return err
			}
		}
	}
	if j.strategyTree == nil || !j.strategyTree.isLiteral() {
		return nil
	}
	_, err := j.Builds(Values{})
	return err
}

// IsKnown reports whether the builds of the job do not depend on other jobs.
func (j *Job) IsKnown() bool { return !j.strategyTree.uses("needs", contexts(ifContexts)) }

// Notes returns notes about the parts of a job that have no effect when the whole workflow runs. inContainer says that
// jobs run in their containers.
func (j *Job) Notes(inContainer bool) []string {
	keys := slices.DeleteFunc(slices.Clone(j.ignored), func(key *yaml.Node) bool {
		return j.atStart[key.Value] != nil || key.Value == "needs" || key.Value == "if"
	})
	return append(notesOf(j.file, keys, ignored), j.boxNotes(inContainer)...)
}

// HasOutputs reports whether the job has outputs.
func (j *Job) HasOutputs() bool { return len(j.outputs) > 0 }

// UsesActions reports whether a step of the job is an action.
func (j *Job) UsesActions() bool {
	return slices.ContainsFunc(j.steps, func(s *step) bool { return s.uses != "" })
}

// Notes returns notes about the keys of the workflow itself that have no effect, and about parts of needs that are
// always empty.
func (w *Workflow) Notes() []string {
	reasons := maps.Clone(ignored)
	reasons["concurrency"] = ""
	notes := notesOf(w.file, w.ignored, reasons)
	for _, e := range w.empty[:min(len(w.empty), maxUnknown)] {
		notes = append(notes, e.Error())
	}
	return notes
}
