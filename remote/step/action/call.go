package action

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/sortedkeys"
	"github.com/stepmux/stepmux/internal/yamltree"
	"github.com/stepmux/stepmux/remote/step/action/expression"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// calling has the keys of a job that calls another workflow.
type calling struct {
	at            *yaml.Node // the key uses
	uses          string
	with, secrets *tree
	inherit       bool // secrets: inherit
}

// Uses names the workflow that a job calls.
type Uses struct {
	// Text is the reference.
	Text string
	// Repository is owner/name, and Rev its revision. They are empty for a workflow in the repository of the caller.
	Repository, Rev string
	// Path is the path of the file in its repository.
	Path string
}

// workflowsDir is the directory with workflows. Gitea and Forgejo have one more each.
const workflowsDir = ".github/workflows"

var workflowsDirs = []string{workflowsDir, ".gitea/workflows", ".forgejo/workflows"}

// URL is the address of the repository, and empty for a workflow of the project.
func (u Uses) URL() string {
	if u.Repository == "" {
		return ""
	}
	return githubServer + "/" + u.Repository
}

// From returns u for a caller whose repository is owner/name@revision; the text is empty if that is the project.
func (u Uses) From(repository string) Uses {
	if u.Repository != "" || repository == "" {
		return u
	}
	u.Repository, u.Rev, _ = strings.Cut(repository, "@")
	u.Text = u.Repository + "/" + u.Path + "@" + u.Rev
	return u
}

// IsPinned reports whether the revision is the full name of a commit, or the workflow is one of the project.
func (u Uses) IsPinned() bool { return u.Repository == "" || IsCommit(u.Rev) }

// readUses reads the reference of a workflow: ./.github/workflows/FILE, or $/ in place of ./, or
// OWNER/NAME/.github/workflows/FILE@REVISION.
func readUses(text string) (u Uses, err error) {
	u.Text = text
	file, isLocal := strings.CutPrefix(text, "./")
	if !isLocal {
		file, isLocal = strings.CutPrefix(text, lang.Self)
	}
	if !isLocal {
		var rest string
		rest, u.Rev, _ = strings.Cut(text, "@")
		parts := strings.SplitN(rest, "/", 3)
		if len(parts) == 3 && parts[0] != "" && parts[1] != "" && u.Rev != "" {
			u.Repository, file = parts[0]+"/"+parts[1], parts[2]
		}
	}
	u.Path = file
	isFile := slices.Contains(workflowsDirs, path.Dir(file)) && path.Clean(file) == file &&
		slices.Contains([]string{".yml", ".yaml"}, path.Ext(file))
	if !isFile || !isLocal && u.Repository == "" {
		return u, fmt.Errorf("%.160q names no workflow: write $/%s/NAME.yml, or OWNER/REPOSITORY/%[2]s/NAME.yml@REVISION",
			text, workflowsDir)
	}
	return u, nil
}

// readCall reads a key of a job that calls another workflow, and reports whether it is one.
func (r *reader) readCall(c *calling, p yamltree.Entry) bool {
	switch p.Key {
	case "uses":
		c.at, c.uses = p.At, r.text(p.Value, p.Key)
		if strings.Contains(c.uses, "${{") {
			r.Failf(p.Value, "uses has an expression, which GitHub does not evaluate here")
		} else if _, err := readUses(c.uses); err != nil && r.Err == nil {
			r.Failf(p.Value, "%v", err)
		}
	case "with":
		c.with = r.tree(p.Value, p.Key, contexts(startContexts))
	case "secrets":
		if v := r.Value(p.Value); r.Err == nil && v.Kind == yaml.ScalarNode {
			if c.inherit = r.text(p.Value, p.Key) == "inherit"; !c.inherit {
				r.Failf(p.Value, "secrets is a mapping, or the word inherit")
			}
			break
		}
		c.secrets = r.tree(p.Value, p.Key, contexts(startContexts+" secrets"))
	default:
		return false
	}
	return true
}

// Uses returns the workflow that the job calls. is is false for a job with steps.
func (j *Job) Uses() (u Uses, is bool) {
	if j.call.at == nil {
		return u, false
	}
	u, _ = readUses(j.call.uses) // it was checked
	return u, true
}

// UsesPlace is the place of the key uses, as file:line:column.
func (j *Job) UsesPlace() string {
	return fmt.Sprintf("%s:%d:%d", j.file, j.call.at.Line, j.call.at.Column)
}

// callerVariable is the job variable with the name of the workflow that calls others: github.workflow in all of them.
const callerVariable = "GITHUB_WORKFLOW"

// Caller returns the variable by which the workflows that w calls know its name, unless a variable has it already.
func (w *Workflow) Caller(vars []engine.Variable) []engine.Variable {
	if slices.ContainsFunc(vars, func(v engine.Variable) bool { return v.Key == callerVariable }) {
		return vars
	}
	return append(slices.Clip(vars), engine.Variable{Key: callerVariable, Value: w.Jobs[0].workflow})
}

// Call has the values that a build of a job gives to the workflow that it calls.
type Call struct {
	// With are the values for its inputs.
	With map[string]any
	// Secrets are its secrets. Inherit says that it gets all of the caller.
	Secrets map[string]string
	Inherit bool
}

// Call evaluates the values that a build of the job gives to the workflow that it calls.
func (j *Job) Call(v Values, b *Build) (c Call, err error) {
	e := j.evaluator(v, b)
	c.Inherit = j.call.inherit
	if c.With, err = e.mapping(j.call.with, "with"); err != nil {
		return c, err
	}
	secrets, err := e.mapping(j.call.secrets, "secrets")
	c.Secrets = make(map[string]string, len(secrets))
	for name, value := range secrets {
		c.Secrets[name] = expression.New(value).Text()
	}
	return c, err
}

// mapping returns the values of a mapping. If t is nil, there are no values.
func (e *evaluator) mapping(t *tree, label string) (map[string]any, error) {
	v, err := e.value(t, label)
	if err != nil || v.Kind() == "Null" {
		return nil, err
	}
	if v.Kind() != "Object" {
		return nil, e.errorf(t, "%s is a mapping, not %s", label, described(v))
	}
	all := map[string]any{}
	for name, value := range v.Properties() {
		all[name] = value.Any()
	}
	return all, nil
}

// callable is the part of on.workflow_call that is no input.
type callable struct {
	is      bool
	secrets map[string]bool // whether they are required
	outputs []setting
}

// callable reads a part of on.workflow_call.
func (r *reader) callable(c *callable, part yamltree.Entry) {
	switch part.Key {
	case "secrets":
		c.secrets = map[string]bool{}
		for _, secret := range r.Mapping(part.Value, part.Key) {
			c.secrets[secret.Key] = false
			for _, p := range r.Mapping(secret.Value, "the secret "+secret.Key) {
				if p.Key == "required" {
					c.secrets[secret.Key] = r.text(p.Value, p.Key) == "true"
				}
			}
		}
	case "outputs":
		for _, output := range r.Mapping(part.Value, part.Key) {
			for _, p := range r.Mapping(output.Value, "the output "+output.Key) {
				if p.Key == "value" {
					c.outputs = append(c.outputs, setting{output.Key, r.text(p.Value, p.Key), p.Value.Line})
				}
			}
		}
		r.expressions(contexts("github inputs jobs vars"), "output ", c.outputs)
	}
}

// CheckCall returns an error if the workflow called cannot be called by the job: it is no such workflow, or the job
// gives other names than it has.
func (j *Job) CheckCall(called *Workflow) error {
	if !called.call.is {
		return fmt.Errorf("%s has no on.workflow_call, so no workflow can call it", called.file)
	}
	inputs, required := map[string]bool{}, called.call.secrets
	for _, in := range called.Jobs[0].inputs {
		if in.called {
			inputs[in.name] = in.required
		}
	}
	if err := j.call.with.checkNames("input", "with", inputs); err != nil {
		return fmt.Errorf("%s: %w", called.file, err)
	}
	for _, in := range called.Jobs[0].inputs {
		if t := j.call.with.at(in.name); in.called && t != nil && t.isLiteral() {
			v, err := new(evaluator).value(t, in.name)
			if err == nil {
				_, err = in.take(v)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", called.file, err)
			}
		}
	}
	if j.call.inherit {
		return nil
	}
	if err := j.call.secrets.checkNames("secret", "secrets", required); err != nil {
		return fmt.Errorf("%s: %w", called.file, err)
	}
	return nil
}

// checkNames returns an error if a mapping has other keys than known, or lacks one that is required there.
func (t *tree) checkNames(label, by string, known map[string]bool) error {
	var given []string
	if t != nil {
		given = t.keys
	}
	for _, name := range given {
		if _, there := known[name]; !there {
			return fmt.Errorf("it has no %s %.64q%s", label, name, lang.Suggest(name, sortedkeys.Of(known), ""))
		}
	}
	for _, name := range sortedkeys.Of(known) {
		if known[name] && !slices.Contains(given, name) {
			return fmt.Errorf("the %s %.64q is required: give it by %s", label, name, by)
		}
	}
	return nil
}

// Given returns the values of the workflow's inputs for a call that was checked.
func (w *Workflow) Given(c Call, vars Values) (inputs map[string]any, err error) {
	inputs = map[string]any{}
	scope := w.Jobs[0].evaluator(vars, nil).scope
	for _, in := range w.Jobs[0].inputs {
		if !in.called {
			continue
		}
		given, there := c.With[in.name]
		value := expression.New(given)
		if !there {
			if value, err = expression.Template(in.value, scope); err != nil {
				return nil, fmt.Errorf("%s:%d: the default of the input %.64q: %w", w.file, in.line, in.name, err)
			}
		}
		if inputs[in.name], err = in.take(value); err != nil {
			return nil, err
		}
	}
	return inputs, nil
}

// take returns a value as that of the input.
func (in *jobInput) take(value expression.Value) (any, error) {
	if kind := value.Kind(); kind == "Array" || kind == "Object" {
		return nil, fmt.Errorf("the input %.64q is %s: toJSON makes a text of it", in.name, described(value))
	}
	v, err := in.read(value.Text())
	if err != nil {
		return nil, fmt.Errorf("the input %.64q: %w", in.name, err)
	}
	return v, nil
}

// besideUses are the keys that a job which calls another workflow may have.
var besideUses = strings.Fields("name uses with secrets needs if concurrency strategy permissions")

// Outputs returns the outputs of a called workflow whose jobs have ended so. v has its inputs and variables.
func (w *Workflow) Outputs(v Values, jobs map[string]Outcome) (map[string]string, error) {
	scope := w.Jobs[0].evaluator(v, nil).scope
	all := map[string]any{}
	for name, o := range jobs {
		outputs := map[string]any{}
		for key, text := range o.Outputs {
			outputs[key] = text
		}
		all[name] = map[string]any{"result": o.Result, "outputs": outputs}
	}
	scope.Values["jobs"] = expression.New(all)
	outputs := map[string]string{}
	for _, o := range w.call.outputs {
		value, err := expression.Template(o.text, scope)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: the output %.64q: %w", w.file, o.line, o.name, err)
		}
		outputs[o.name] = value.Text()
	}
	return outputs, nil
}
