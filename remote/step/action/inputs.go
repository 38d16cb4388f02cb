package action

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/sortedkeys"
	"github.com/stepmux/stepmux/internal/yamltree"
	"github.com/stepmux/stepmux/remote/step/action/expression"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// jobInput is an input of a workflow that is started by hand, or called by another one.
type jobInput struct {
	name, kind string
	value      string // the default
	options    []string
	required   bool
	called     bool // by another workflow
	line       int
}

// triggers reads the inputs of a workflow, and what a call of it can have.
func (r *reader) triggers(on *yaml.Node) (all []jobInput, c callable) {
	if r.Err != nil {
		return nil, c
	}
	c.is = slices.Contains(r.events(on), "workflow_call")
	if r.Value(on).Kind != yaml.MappingNode { // the name of an event, or a list of names
		return nil, c
	}
	for _, event := range r.Mapping(on, "on") {
		if event.Key != "workflow_dispatch" && event.Key != "workflow_call" {
			continue
		}
		for _, part := range r.Mapping(event.Value, event.Key) {
			if part.Key != "inputs" {
				if event.Key == "workflow_call" {
					r.callable(&c, part)
				}
				continue
			}
			for _, p := range r.Mapping(part.Value, part.Key) {
				in := r.jobInput(p)
				in.called = event.Key == "workflow_call"
				if kinds := []string{"", "boolean", "number", "string"}; in.called && !slices.Contains(kinds, in.kind) {
					r.Failf(p.At, "the type of an input of workflow_call is boolean, number or string, not %.64s", in.kind)
				}
				all = append(all, in)
			}
		}
	}
	return all, c
}

// events returns the names of the events in on: a name, a list of names, or the keys of a mapping.
func (r *reader) events(on *yaml.Node) (names []string) {
	switch v := r.Value(on); v.Kind { //nolint:exhaustive // a value has no other kind
	case yaml.ScalarNode:
		names = []string{r.text(on, "on")}
	case yaml.SequenceNode:
		for _, item := range r.List(on, "on") {
			names = append(names, r.text(item, "an event"))
		}
	case yaml.MappingNode:
		for _, event := range r.Mapping(on, "on") {
			names = append(names, event.Key)
		}
	}
	return names
}

func (r *reader) jobInput(p yamltree.Entry) jobInput {
	in := jobInput{name: p.Key, line: p.At.Line}
	for _, part := range r.Mapping(p.Value, "the input "+p.Key) {
		switch part.Key {
		case "type":
			in.kind = r.text(part.Value, part.Key)
		case "default":
			in.value = r.text(part.Value, part.Key)
		case "required":
			in.required = r.text(part.Value, part.Key) == "true"
		case "options":
			for _, option := range r.List(part.Value, part.Key) {
				in.options = append(in.options, r.text(option, "an option"))
			}
		}
	}
	return in
}

// Inputs returns the values of the workflow's inputs: those in given, or else the defaults, with their types. The notes
// are about inputs that have no value.
func (j *Job) Inputs(given map[string]string) (values map[string]any, notes []string, err error) {
	values = map[string]any{}
	for _, in := range j.inputs {
		if _, there := values[in.name]; there { // it is an input of both events
			continue
		}
		value, there := given[in.name]
		if !there {
			value = in.value
		}
		if value == "" && in.required {
			notes = append(notes, fmt.Sprintf("%s:%d: the input %.64s is required, and has no value: give it with --input",
				j.file, in.line, in.name))
		}
		if values[in.name], err = in.read(value); err != nil {
			return nil, nil, fmt.Errorf("%s:%d: the input %.64q: %w", j.file, in.line, in.name, err)
		}
	}
	for _, name := range sortedkeys.Of(given) {
		if _, there := values[name]; !there {
			return nil, nil, fmt.Errorf("%s: the workflow has no input %.64q in on.workflow_dispatch or on.workflow_call",
				j.file, name)
		}
	}
	return values, notes, nil
}

// read returns the value of a text for the input.
func (in *jobInput) read(text string) (any, error) {
	switch {
	case in.kind == "boolean" && (text == "" || text == "false" || text == "true"):
		return text == "true", nil
	case in.kind == "boolean":
		return nil, fmt.Errorf("%.64q is neither true nor false", text)
	case in.kind == "number" && text == "":
		return 0.0, nil
	case in.kind == "number":
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			return nil, fmt.Errorf("%.64q is not a number", text)
		}
		return f, nil
	case in.kind == "choice" && text != "" && !slices.Contains(in.options, text):
		return nil, fmt.Errorf("%.64q is not one of its options: %.400s", text, strings.Join(in.options, ", "))
	default:
		return text, nil
	}
}

// Event returns the event that starts a workflow with these inputs. It has the parts that a job's event has without
// one.
func Event(inputs map[string]any, vars []engine.Variable) map[string]any {
	given := map[string]string{}
	for name, v := range inputs {
		given[name] = expression.New(v).Text()
	}
	about := githubTexts(func(name string) string {
		i := slices.IndexFunc(vars, func(v engine.Variable) bool { return v.Key == name })
		if i < 0 {
			return ""
		}
		return vars[i].Value
	})
	_, name, _ := strings.Cut(about["repository"], "/")
	owner := map[string]any{"login": about["repository_owner"], "name": about["repository_owner"]}
	event := map[string]any{
		"ref":        about["ref"],
		"repository": map[string]any{"full_name": about["repository"], "name": name, "owner": owner},
	}
	if len(given) > 0 {
		event["inputs"] = given
	}
	return event
}
