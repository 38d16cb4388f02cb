package action

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/stepmux/stepmux/internal/sortedkeys"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/action/expression"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// list is a running list of steps: those of a workflow's job, or of a composite action.
type list struct {
	*session
	file   string  // file of the steps, for errors
	specs  []*step // its steps
	action *loaded // nil for a job
	inputs expression.Value
	steps  map[string]*state // finished steps, by id in lower case
	env    map[string]string // set by the steps around it
	failed bool              // one of its steps has failed without continue-on-error
	shell  string
	dir    string
	limit  time.Time // zero if there is no limit
	label  string    // names the limit in errors
	late   bool      // the job was stopped before the list began: its steps run all the same
}

// state is the part of a finished step that expressions can read.
type state struct {
	id                  string
	outputs             map[string]string
	outcome, conclusion string
}

// names returns the names of the list's steps, which differ.
func (l *list) names() []string {
	seen := map[string]int{} // the number to try for the next step of that name
	names := make([]string, len(l.specs))
	for i, s := range l.specs {
		name := cmp.Or(s.id, s.name)
		if name == "" || strings.Contains(name, "${{") || strings.ContainsAny(name, "\n\r") || len(name) > 100 {
			name = fmt.Sprintf("step_%d", i+1)
		}
		unique := name
		for seen[unique] > 0 {
			seen[name]++
			unique = fmt.Sprintf("%s_%d", name, seen[name])
		}
		seen[unique] = 1
		names[i] = unique
	}
	return names
}

// prepare gets all actions of the steps, and runs their pre stages. Like GitHub, it does both before the first step. It
// returns the first result of a pre stage that failed.
func (l *list) prepare(ctx context.Context, results []engine.StepResult) (failed engine.Result, err error) {
	for i, s := range l.specs {
		isSelf := strings.HasPrefix(s.uses, lang.Self) && l.repository == ""
		if s.uses == "" || strings.HasPrefix(s.uses, ".") || isSelf && !l.inProject || l.inProject && s.isCheckout() {
			continue
		}
		if err := l.loadStep(ctx, s); err != nil {
			return failed, err
		}
		if s.loaded.component != nil { // a replay fetches it too, even if the step does not run
			l.call.Found(&results[i], s.loaded.found(s.loaded.parts()))
		}
	}
	for i, s := range l.specs { // none runs if another cannot be fetched
		if s.loaded == nil || s.loaded.pre == "" {
			continue
		}
		results[i].Steps = newResults(&results[i], s.loaded.parts())
		x := &running{list: l, spec: s, res: &results[i], outputs: map[string]string{}, early: true}
		o, _ := x.runPre(ctx)
		o, forgiven := x.forgives(o)
		if o.Status == engine.Failure && !forgiven && !l.failed {
			l.failed, failed = true, o
		}
	}
	return failed, nil
}

// loadStep finds the action of a step.
func (l *list) loadStep(ctx context.Context, s *step) error {
	if s.loaded != nil {
		return nil
	}
	ref, err := lang.ParseAction(s.uses)
	if err == nil {
		if dir, isSelf := strings.CutPrefix(ref.GetPath(), lang.Self); isSelf {
			s.loaded, err = l.loadOwn(ctx, dir)
		} else {
			s.loaded, err = l.load(ctx, ref, l.inWork)
		}
	}
	if err != nil {
		return l.at(s.line, err)
	}
	return nil
}

// inWork finds a directory of the project.
func (l *list) inWork(path string) (dir, root string, err error) {
	return filepath.Join(l.work(), path), "", nil
}

// loadOwn finds the action in dir of the repository that the list comes from.
func (l *list) loadOwn(ctx context.Context, dir string) (*loaded, error) {
	in := l.action
	if in == nil || in.root == "" {
		text := "./" + dir
		if in == nil && l.repository != "" {
			name, rev, _ := strings.Cut(l.repository, "@")
			text = name + "/" + dir + "@" + rev
		}
		ref, err := lang.ParseAction(text)
		if err != nil {
			return nil, err
		}
		return l.load(ctx, ref, l.inWork)
	}
	a := &loaded{root: in.root, dir: filepath.Join(in.root, filepath.FromSlash(dir)), component: in.component}
	a.ref = proto.CloneOf(in.ref)
	a.ref.Path = dir
	open := l.call.Open
	if a.component != nil {
		open = os.OpenFile
	}
	var err error
	a.manifest, err = readManifest(open, a.dir, a.name())
	return a, err
}

// at adds the place to err.
func (l *list) at(line int, err error) error {
	if line == 0 {
		return err
	}
	return fmt.Errorf("%s:%d: %w", l.file, line, err)
}

// run runs the steps and returns the outcome of the list.
func (l *list) run(ctx context.Context, results []engine.StepResult) engine.Result {
	out := engine.Result{Status: engine.Success}
	for i, s := range l.specs {
		res := &results[i]
		l.tell(i, "begin")
		o, conclusion := l.runStep(ctx, s, res)
		l.tell(i, conclusion)
		switch {
		case conclusion == failure && !l.failed:
			l.failed = true
			out = engine.Result{Status: engine.Failure, ExitCode: o.ExitCode, Message: res.Message, System: o.System}
		case conclusion == cancelled && !l.failed:
			out = o
		}
	}
	return out
}

// tell marks the begin or the end of a step of the job in the output.
func (l *list) tell(step int, what string) {
	if l.marks != "" && l == l.top {
		lang.Mark(l.call.Place.Stdout, l.marks, step, what)
	}
}

// The values of outcome and conclusion.
const (
	success   = "success"
	failure   = "failure"
	cancelled = "cancelled"
	skipped   = "skipped"
)

// runStep runs a step if its condition is true. It also returns the step's conclusion.
func (l *list) runStep(ctx context.Context, s *step, res *engine.StepResult) (engine.Result, string) {
	st := &state{id: s.id, outputs: map[string]string{}, outcome: skipped, conclusion: skipped}
	if s.id != "" {
		defer func() { l.steps[strings.ToLower(s.id)] = st }()
	}
	x := &running{list: l, spec: s, res: res, outputs: st.outputs}
	end := func(o engine.Result) (engine.Result, string) {
		if res.Status == engine.Skipped {
			_ = l.call.Begin(res, engine.Unknown, engine.Prepared{Definition: definitionOf(nil)})
		}
		st.outcome, st.conclusion = o.Status.String(), o.Status.String()
		o, forgiven := x.forgives(o)
		if forgiven {
			st.conclusion = success
		}
		if l.call.End(res, o); res.Outputs == nil { // there are none, or too many
			clear(st.outputs)
		}
		if o.Status == engine.Success && res.Status == engine.Failure {
			st.outcome, st.conclusion = failure, failure
		}
		return o, st.conclusion
	}
	var envErr error
	x.env, envErr = l.settings(s.env, "env")
	wanted, always, err := l.condition(s.condition, s.conditionLine, x.env) // like GitHub, it sees the step's own env
	if err != nil {
		return end(engine.Failed(err))
	}
	if !wanted {
		if l.cut() { // so that the engine knows that the step did not run
			l.call.Proceed(ctx, false)
		}
		l.call.Skip(res)
		return engine.Result{Status: engine.Skipped}, skipped
	}
	ctx, proceeds := l.call.Proceed(ctx, always || l.late)
	if !proceeds {
		l.call.Skip(res)
		return engine.Result{Status: engine.Skipped}, skipped
	}
	if envErr != nil {
		return end(engine.Failed(envErr))
	}
	if err := x.setLimit(); err != nil {
		return end(engine.Failed(err))
	}
	if s.uses == "" {
		return end(x.runScript(ctx))
	}
	if l.inProject && s.isCheckout() {
		switch done, err := x.keepProject(); {
		case err != nil:
			return end(engine.Failed(err))
		case done:
			return end(engine.Result{Status: engine.Success})
		}
	}
	if err := l.loadStep(ctx, s); err != nil {
		return end(engine.Failed(err))
	}
	return end(x.runAction(ctx))
}

// forgives reports whether the job goes on after o, a failure of the step or of one of its stages, by
// continue-on-error. It returns o, or the failure to find that out.
func (x *running) forgives(o engine.Result) (engine.Result, bool) {
	if o.Status != engine.Failure || x.spec.mayFail == "" {
		return o, false
	}
	v, err := x.eval(x.spec.mayFail, x.spec.line, "continue-on-error", x.env)
	if err != nil {
		return engine.Failed(err), false
	}
	return o, v.Truthy() && v.Text() != "false"
}

// setLimit sets the limit of the step, from timeout-minutes.
func (x *running) setLimit() error {
	x.limit, x.label = x.list.limit, x.list.label
	if x.spec.timeout == "" {
		return nil
	}
	text, err := x.text(x.spec.timeout, x.spec.line, "timeout-minutes")
	if err != nil {
		return err
	}
	minutes, err := strconv.ParseFloat(text, 64)
	if err != nil || !(minutes >= 0 && minutes <= 1e6) { // not a NaN either
		return x.at(x.spec.line, fmt.Errorf("timeout-minutes is %.64q; write a positive number, or 0 for no limit", text))
	}
	if minutes == 0 {
		return nil
	}
	d := time.Duration(minutes * float64(time.Minute))
	if at := time.Now().Add(d); x.limit.IsZero() || at.Before(x.limit) {
		x.limit, x.label = at, fmt.Sprintf("the step %q ran for longer than %v", x.res.Name, d)
	}
	return nil
}

// settings evaluates the values of a mapping.
func (l *list) settings(given []setting, label string) (map[string]string, error) {
	list, err := l.entries(given, label, nil)
	set := make(map[string]string, len(list))
	for _, e := range list {
		set[e.name] = e.text
	}
	return set, err
}

// entries evaluates the entries of a mapping. env is added to the context env.
func (l *list) entries(given []setting, label string, env map[string]string) (all []setting, err error) {
	for _, e := range given {
		v, err := l.eval(e.text, e.line, e.label(label), env)
		if err != nil {
			return nil, err
		}
		list, err := e.evaluated(v, label)
		if err != nil {
			return nil, l.at(e.line, err)
		}
		all = append(all, list...)
	}
	return all, nil
}

// outputs evaluates the outputs of the list.
func (l *list) outputs(given []setting) (values, error) {
	out := values{}
	var errs []error
	for _, o := range given {
		text, err := l.text(o.text, o.line, "output "+o.name)
		if err == nil {
			out[o.name], err = newValue(text)
		}
		errs = append(errs, err)
	}
	return out, errors.Join(errs...)
}

// text evaluates a template to a text.
func (l *list) text(template string, line int, label string) (string, error) {
	v, err := l.eval(template, line, label, nil)
	return v.Text(), err
}

// eval evaluates a template. env is added to the context env.
func (l *list) eval(template string, line int, label string, env map[string]string) (expression.Value, error) {
	if !strings.Contains(template, "${{") {
		return expression.String(template), nil
	}
	v, err := expression.Template(template, l.scope(template, env))
	if err != nil {
		return v, l.at(line, fmt.Errorf("%s: %w", label, err))
	}
	return v, nil
}

// bare returns the text of an if without ${{ and }} around the whole.
func bare(text string) string {
	text = strings.TrimSpace(text)
	inner, whole := strings.CutPrefix(text, "${{")
	if whole && strings.HasSuffix(inner, "}}") && strings.Count(text, "${{") == 1 {
		text = strings.TrimSpace(strings.TrimSuffix(inner, "}}"))
	}
	return text
}

// condition evaluates the if of a step. always says that it is true for a stopped job, too.
func (l *list) condition(text string, line int, env map[string]string) (holds, always bool, err error) {
	if text = bare(text); text == "" {
		return l.succeeded(), false, nil
	}
	holds, always, err = evaluateIf(text, l.scope(text, env))
	if err != nil {
		return false, false, l.at(line, err)
	}
	return holds && (always || l.succeeded()), always, nil
}

// evaluateIf evaluates an if, which is not empty. asks says that it has one of the status functions; if not, success()
// must hold, too.
func evaluateIf(text string, scope expression.Scope) (holds, asks bool, err error) {
	evaluate, template := expression.Template, text
	if !strings.Contains(text, "${{") {
		evaluate, template = expression.Evaluate, "${{"+text+"}}"
	}
	v, err := evaluate(text, scope)
	if err != nil {
		return false, false, fmt.Errorf("if: %w", err)
	}
	return v.Truthy(), expression.Calls(template, scope, "success", "failure", "always", "cancelled"), nil
}

// cut reports whether the job was stopped after the list began.
func (l *list) cut() bool { return !l.late && l.call.Stopped() }

// succeeded returns the value of success().
func (l *list) succeeded() bool { return !l.failed && !l.cut() }

// jobStatus returns the status of the job so far.
func (l *list) jobStatus() string {
	switch {
	case l.call.Stopped():
		return cancelled
	case l.call.JobFailed() || l.top != nil && l.top.failed || l.top == nil && l.failed:
		return failure
	default:
		return success
	}
}

// stepsValue returns the context steps.
func (l *list) stepsValue() expression.Value {
	all := make(map[string]expression.Value, len(l.steps))
	for _, st := range l.steps {
		all[st.id] = expression.Object(map[string]expression.Value{
			"outputs": expression.Texts(st.outputs), "outcome": expression.String(st.outcome),
			"conclusion": expression.String(st.conclusion),
		})
	}
	return expression.Object(all)
}

// scope returns the contexts and functions for the expressions in text; knownNames has their names. env is added to the
// context env.
func (l *list) scope(text string, env map[string]string) expression.Scope {
	github, lower := maps.Clone(l.github), strings.ToLower(text)
	github["token"] = expression.String("")
	if strings.Contains(lower, "token") { // expressions get only the variables that they can name
		github["token"] = expression.String(l.variable("GITHUB_TOKEN"))
	}
	if l.action != nil {
		github["action_path"] = expression.String(l.action.dir)
		github["action_ref"] = expression.String(l.action.ref.GetRev())
		github["action_repository"] = expression.String(l.action.ref.GetRepository())
		status := success
		if l.failed {
			status = failure
		}
		github["action_status"] = expression.String(status)
	}
	s := expression.Scope{Values: map[string]expression.Value{
		"github": expression.Object(github), "runner": expression.Texts(l.runner()),
		"env":    expression.Texts(l.environ(l.env, env)),
		"inputs": l.inputs, "steps": l.stepsValue(), "matrix": l.matrix, "needs": l.needs, "strategy": l.strategy,
		"job": l.jobContext(lower),
	}}
	if l.action == nil {
		secrets, vars := l.variableContexts(text)
		s.Values["secrets"], s.Values["vars"] = secrets, vars
	}
	is := func(b func() bool) expression.Function {
		return expression.Function{Call: func([]expression.Value) (expression.Value, error) {
			return expression.Boolean(b()), nil
		}}
	}
	s.Functions = map[string]expression.Function{
		"success":   is(l.succeeded),
		"failure":   is(func() bool { return l.failed && !l.cut() }),
		"always":    is(func() bool { return true }),
		"cancelled": is(l.call.Stopped),
		"hashfiles": {Min: 1, Max: 255, Call: func(args []expression.Value) (expression.Value, error) {
			patterns := make([]string, len(args))
			for i, arg := range args {
				patterns[i] = arg.Text()
			}
			sum, err := hashFiles(l.call.Open, l.work(), patterns, l.call.Stopped)
			return expression.String(sum), err
		}},
	}
	return s
}

// jobContext returns the context job for the expressions in a text in lower case.
func (l *list) jobContext(text string) expression.Value {
	all := map[string]expression.Value{}
	if strings.Contains(text, "job") {
		for name, value := range fromJSON(l.variable(pb.JobContext)).Properties() {
			all[name] = value
		}
	}
	all["status"] = expression.String(l.jobStatus())
	return expression.Object(all)
}

// variableContexts returns the contexts secrets and vars: the masked job variables, and the others. Variables whose
// names stand in text count as read.
func (l *list) variableContexts(text string) (secrets, vars expression.Value) {
	lower := strings.ToLower(text)
	dense := strings.Join(strings.Fields(lower), "")
	all := slices.ContainsFunc([]string{
		"secrets)", "vars)", "secrets[", "vars[", "secrets.*", "vars.*",
	}, func(whole string) bool { return strings.Contains(dense, whole) })
	if !strings.Contains(lower, "secrets") && !strings.Contains(lower, "vars") {
		return expression.Object(nil), expression.Object(nil)
	}
	hidden, open := map[string]string{}, map[string]string{}
	for _, name := range sortedkeys.Of(l.vars) {
		if name == pb.JobContext || !all && !strings.Contains(lower, strings.ToLower(name)) {
			continue
		}
		l.call.Reading(name)
		if v := l.vars[name]; v.Sensitive() {
			hidden[name] = v.Text()
		} else {
			open[name] = v.Text()
		}
	}
	return expression.Texts(hidden), expression.Texts(open)
}
