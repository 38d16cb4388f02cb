package action

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stepmux/stepmux/remote/step/action/expression"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// runAction runs the action of the step.
func (x *running) runAction(ctx context.Context) engine.Result {
	a := x.spec.loaded
	if err := x.readInputs(); err != nil {
		return engine.Failed(err)
	}
	if a.using == "composite" {
		return x.runComposite(ctx)
	}
	main := x.res
	names := a.parts()
	if names != nil && len(x.res.Steps) == 0 {
		x.res.Steps = newResults(x.res, names)
	}
	if x.res.Status == engine.Skipped && names != nil {
		if err := x.begin(x.res, process{}, engine.Sequence); err != nil {
			return engine.Failed(err)
		}
	}
	if a.file != "" { // docker://image has no description
		x.call.Found(x.res, a.found(names))
	}
	if names != nil {
		main = x.part("main")
	}
	if a.pre != "" && x.list != x.top { // in a job, pre stages run before the first step
		o, ran := x.runPre(ctx)
		if _, forgiven := x.forgives(o); ran && o.Status != engine.Success && !forgiven {
			return o
		}
	}
	x.awaitPost()
	o := x.runStage(ctx, main, a.main)
	if main != x.res {
		if err := x.setOutputs(); err != nil && o.Status == engine.Success {
			o = engine.Failed(err)
		}
		x.call.End(main, o)
		o.Message = main.Message
	}
	return o
}

// failed returns the result of an action that could not run.
func (x *running) failed(err error) engine.Result {
	return engine.Failed(x.at(x.spec.line, fmt.Errorf("run the action %s: %w", x.spec.loaded.name(), err)))
}

// part returns the result of a stage.
func (x *running) part(name string) *engine.StepResult {
	i := slices.IndexFunc(x.res.Steps, func(r engine.StepResult) bool { return r.Name == name })
	return &x.res.Steps[i]
}

// runStage runs the program of a stage in res.
func (x *running) runStage(ctx context.Context, res *engine.StepResult, program string) engine.Result {
	env := maps.Clone(x.given)
	for name, value := range x.spec.saved {
		env["STATE_"+name] = value
	}
	if x.spec.loaded.using == "docker" {
		return x.runDocker(ctx, res, env, program)
	}
	return x.runNode(ctx, res, env, program)
}

// runPre runs the pre stage if its condition is true, and reports whether it did.
func (x *running) runPre(ctx context.Context) (engine.Result, bool) {
	a, res := x.spec.loaded, x.part("pre")
	holds, always, err := x.condition(a.preIf, 0, nil)
	if err == nil && x.early {
		x.env, err = x.settings(x.spec.env, "env")
	}
	if err != nil {
		return engine.Failed(err), true
	}
	ctx, proceeds := x.call.Proceed(ctx, always)
	if !holds || !proceeds {
		x.call.Skip(res)
		return engine.Result{}, false
	}
	if x.early { // else they were read with the step's
		if err := x.readInputs(); err != nil {
			return engine.Failed(err), true
		}
	}
	x.awaitPost()
	o := x.runStage(ctx, res, a.pre)
	x.call.End(res, o)
	o.Message = res.Message
	return o, true
}

// awaitPost has the post stage of the step's action run at the end of the job. As on GitHub, the first stage of the
// step that begins gives it its place in the order.
func (x *running) awaitPost() {
	if x.spec.loaded.post == "" {
		return
	}
	if x.spec.post == nil {
		x.posts = append(x.posts, x.spec)
	}
	x.spec.post = x
}

// runPosts runs the post stages of steps, the last one first. It returns the first result that failed without
// continue-on-error.
func runPosts(ctx context.Context, steps []*step) (failed *engine.StepResult) {
	for _, s := range slices.Backward(steps) {
		res := s.post.part("post")
		o, forgiven := s.post.forgives(s.post.runPost(ctx, res))
		if o.Status == engine.Failure && !forgiven && failed == nil {
			failed = res
		}
	}
	return failed
}

// runPost runs the post stage if its condition is true. res gets the result.
func (x *running) runPost(ctx context.Context, res *engine.StepResult) engine.Result {
	top := *x.list // post-if uses the status of the job
	top.failed, top.late = top.jobStatus() == failure, false
	holds, always, err := top.condition(x.spec.loaded.postIf, 0, nil)
	if err == nil && !holds {
		x.call.Skip(res)
		return engine.Result{}
	}
	var o engine.Result
	if err != nil {
		_ = x.call.Begin(res, engine.Unknown, engine.Prepared{Definition: definitionOf(nil)})
		o = engine.Failed(err)
	} else {
		ctx, proceeds := x.call.Proceed(ctx, always)
		if !proceeds {
			x.call.Skip(res)
			return engine.Result{}
		}
		x.limit = time.Time{} // post steps run after the limits of the enclosing steps
		outputs := x.res.Outputs
		o = x.runStage(ctx, res, x.spec.loaded.post)
		x.res.Outputs = outputs // outputs of a post stage come too late
	}
	x.call.End(res, o)
	return o
}

// inputVariable returns the name of the variable with an input.
func inputVariable(name string) string {
	return "INPUT_" + strings.ToUpper(strings.ReplaceAll(name, " ", "_"))
}

// readInputs sets given to the inputs of the action, with defaults: as variables INPUT_<NAME> or, for a composite
// action, by their names.
func (x *running) readInputs() error {
	a := x.spec.loaded
	variable := inputVariable
	if a.using == "composite" {
		variable = func(name string) string { return name }
	}
	set := map[string]string{}
	warn := func(format string, args ...any) {
		if !x.early { // else the step would warn a second time
			addWarning(x.res, fmt.Sprintf(format, args...))
		}
	}
	known := map[string]bool{}
	if a.using == "docker" {
		known["args"], known["entrypoint"] = true, true
	}
	for _, in := range a.inputs {
		known[strings.ToLower(in.name)] = true
	}
	given := map[string]bool{}
	var unknown []string
	with := x.spec.with
	if !x.literal {
		var err error
		if with, err = x.entries(with, "with", x.env); err != nil {
			return err
		}
	}
	for _, w := range with {
		lower := strings.ToLower(w.name)
		if !known[lower] {
			unknown = append(unknown, w.name)
		}
		given[lower] = true
		set[variable(w.name)] = w.text
	}
	defaults := *x.list // defaults can use the contexts of the job, but not steps
	defaults.action = a
	defaults.file = a.name() + "/" + a.file
	for _, in := range a.inputs {
		if given[strings.ToLower(in.name)] {
			if in.deprecated != "" {
				warn("the input %.64q is deprecated: %.400s", in.name, in.deprecated)
			}
			continue
		}
		text, err := defaults.text(in.value, in.line, "default of "+in.name)
		if err != nil {
			return err
		}
		set[variable(in.name)] = text
		if in.required && in.value == "" {
			warn("the input %.64q is required, and is not given", in.name)
		}
	}
	if len(unknown) > 0 {
		names := make([]string, len(a.inputs))
		for i, in := range a.inputs {
			names[i] = in.name
		}
		warn("Unexpected input(s) '%.200s', valid inputs are [%.400s]", strings.Join(unknown, "', '"),
			strings.Join(names, ", "))
	}
	x.given = set
	return nil
}

// runComposite runs the steps of a composite action.
func (x *running) runComposite(ctx context.Context) engine.Result {
	a := x.spec.loaded
	if err := x.call.List(len(a.steps)); err != nil {
		return engine.Failed(err)
	}
	env := maps.Clone(x.list.env)
	maps.Copy(env, x.env)
	inner := &list{
		session: x.session, file: strings.TrimSuffix(a.name(), "/") + "/" + a.file, specs: copies(a.steps), action: a,
		inputs: expression.Texts(x.given), steps: map[string]*state{}, env: env, limit: x.limit, label: x.label,
		late: x.call.Stopped(),
	}
	if x.res.Status == engine.Skipped {
		if err := x.begin(x.res, process{}, engine.Sequence); err != nil {
			return engine.Failed(err)
		}
	}
	x.res.Steps = newResults(x.res, inner.names())
	x.call.Found(x.res, a.found(inner.names()))
	o := inner.run(ctx, x.res.Steps)
	outputs, err := inner.outputs(a.outputs)
	x.res.Outputs = outputs
	for name, v := range outputs {
		x.outputs[name] = v.Text()
	}
	if err != nil && o.Status == engine.Success {
		o = engine.Failed(err)
	}
	return o
}

// copies returns fresh copies of steps for another run of the same action.
func copies(steps []*step) []*step {
	list := make([]*step, len(steps))
	for i, s := range steps {
		c := *s
		c.saved = map[string]string{}
		list[i] = &c
	}
	return list
}
