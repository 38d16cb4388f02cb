package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stepmux/stepmux/internal/sortedkeys"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// sequence runs the steps of f, and records their ends in results.
func (r *Runner) sequence(ctx context.Context, f *frame, results []StepResult) {
	for i, s := range f.def.GetSteps() {
		res := &results[i]
		f.ran[res.Name] = res
		if stepCtx, after, due := r.due(ctx, f, s.GetWhen()); due {
			r.mark(f, i, "begin")
			r.runStep(stepCtx, f, s, res, after)
			r.mark(f, i, res.Status.String())
		} else {
			r.cfg.Observe(*res)
		}
		if res.Status == Failure && f.failed == nil && !r.mayFail(res) {
			f.failed = res
		}
	}
}

// mark tells where a step of the job begins or ends.
func (r *Runner) mark(f *frame, step int, what string) {
	if r.cfg.Marks != "" && f == r.top {
		lang.Mark(r.place.Stdout, r.cfg.Marks, step, what)
	}
}

// mayFail reports whether the job goes on as if the failed step had succeeded.
func (r *Runner) mayFail(res *StepResult) bool {
	return len(res.Path) == 1 && slices.Contains(r.cfg.MayFail, res.Name)
}

// outcome is the end of a step.
type outcome struct {
	status Status
	code   int
	why    string // empty if it succeeded
	system bool   // the machine or the step runner failed
	server bool   // system is set because of a server or the network path to it, as far as is known
}

func failed(err error) outcome {
	fetch, fetching := errors.AsType[*component.SystemError](err)
	return outcome{status: Failure, why: err.Error(), system: systemFailed(err), server: fetching && fetch.Server}
}

// systemFailed reports whether err is a fault of this machine, of the network or of a server, and not of the job.
func systemFailed(err error) bool {
	_, fetching := errors.AsType[*component.SystemError](err)
	return fetching || proc.MachineFailed(err)
}

// outcome returns the end of a step that was stopped.
func (s *stop) outcome(code int) outcome {
	o := outcome{status: Cancelled, code: code, why: s.message}
	if s.timedOut {
		o.status = Failure
	}
	return o
}

// runStep runs one step to its end and records its end in res.
func (r *Runner) runStep(ctx context.Context, f *frame, s *pb.Step, res *StepResult, after bool) {
	if s.GetCondition() != "" {
		delete(f.ran, res.Name) // its own result is not visible to it
		wanted, err := r.condition(f.at(s), s.GetCondition())
		f.ran[res.Name] = res
		if err != nil {
			res.Started = time.Now()
			r.finish(res, failed(err))
			return
		}
		r.tell(func(e Events) { e.ConditionEvaluated(res, wanted) })
		if !wanted {
			r.cfg.Observe(*res)
			return
		}
	}
	res.Started = time.Now()
	r.finish(res, r.call(ctx, f, s, res, after))
}

// list counts the n steps of a list that is about to run: those that do not run take memory, too.
func (r *Runner) list(n int) error {
	if r.listed += n; r.listed > maxListed {
		return fmt.Errorf("the job has more than %d steps", maxListed)
	}
	return nil
}

// admit counts a step that is about to run. The error says that the job has too many steps, or too deep ones.
func (r *Runner) admit(res *StepResult) error {
	r.count++
	switch {
	case r.count > maxRun:
		return fmt.Errorf("the job runs more than %d steps", maxRun)
	case len(res.Path) > maxCalls:
		return fmt.Errorf("the steps call each other beyond a depth of %d; does one of them call itself?", maxCalls)
	}
	return nil
}

// announce reports that a step runs.
func (r *Runner) announce(res *StepResult, kind Kind) {
	res.Status, res.Kind = Running, kind
	r.observe(res)
}

// observe reports the state of res, without the steps below it.
func (r *Runner) observe(res *StepResult) {
	seen := *res
	seen.Steps = nil
	r.cfg.Observe(seen)
}

// finish records how a step ended.
func (r *Runner) finish(res *StepResult, o outcome) {
	if res.Status != Running {
		r.announce(res, Unknown)
	}
	res.Finished = time.Now()
	res.Status, res.ExitCode, res.System, res.Server = o.status, o.code, o.system, o.server
	if o.why != "" {
		res.Message = r.cfg.Secrets.Message(fmt.Sprintf("step %q: %s", res.Name, o.why))
	}
	res.Summary = r.cfg.Secrets.Mask(res.Summary)
	for i := range res.Annotations {
		a := &res.Annotations[i]
		a.Message, a.Title = r.cfg.Secrets.Message(a.Message), r.cfg.Secrets.Message(a.Title)
		a.File = r.cfg.Secrets.Message(a.File)
	}
	for i, warning := range res.Warnings {
		res.Warnings[i] = r.cfg.Secrets.Message(warning)
	}
	r.tell(func(e Events) { e.StepEnded(res) })
	r.observe(res)
}

// call finds the definition of a step, and runs it.
func (r *Runner) call(ctx context.Context, f *frame, s *pb.Step, res *StepResult, after bool) outcome {
	if err := r.admit(res); err != nil {
		return failed(err)
	}
	delete(f.ran, res.Name) // its own result is not visible to it while it runs
	defer func() { f.ran[res.Name] = res }()
	g, err := r.prepare(ctx, f, s, res)
	switch stopped := r.stopping(); {
	case err != nil && stopped != nil && r.after == nil:
		r.cuts++
		return stopped.outcome(0)
	case err != nil && ctx.Err() != nil:
		r.cuts++
		return outcome{status: Cancelled, why: context.Cause(ctx).Error()}
	case err != nil:
		return failed(err)
	}
	g.after = after
	if g.isForeign() {
		return r.runForeign(ctx, g, res)
	}
	if g.def.GetType() == pb.DefinitionType_exec {
		return r.runCommand(ctx, g, res)
	}
	return r.runSequence(ctx, g, res)
}

// prepare makes the frame of a step.
func (r *Runner) prepare(ctx context.Context, f *frame, s *pb.Step, res *StepResult) (*frame, error) {
	r.serial++
	own := &files{in: r.scripts, name: fmt.Sprintf("step-%d", r.serial)}
	inPlace := s.GetDefinition().GetType() == pb.DefinitionType_exec ||
		s.GetReference().GetProtocol() == pb.Reference_builtin
	var known *files
	if inPlace {
		known = own
	}
	at := f.at(s)
	set, err := r.evalEnv(at.with(nil, known), s.GetEnv())
	if err != nil {
		return nil, err
	}
	c := at.with(set, known)
	c.limits = limited(c.limits, s.GetTimeout(), fmt.Sprintf("the step %q", res.Name))
	g := &frame{
		def: s.GetDefinition(), dir: c.dir, root: c.root, env: c.env,
		requests: c.requests, inputs: c.inputs, limits: c.limits,
		ran: map[string]*StepResult{},
	}
	if g.def != nil {
		g.outer, g.places, g.within = c, c.places, c.within
	} else if err := r.enter(ctx, c, g, s, res); err != nil {
		return nil, err
	}
	if g.def.GetType() == pb.DefinitionType_exec {
		g.files = own
		g.limits = limited(g.limits, g.def.GetExec().GetTimeout(), "the command")
	}
	set, err = r.evalEnv(g, g.def.GetEnv())
	if err != nil {
		return nil, err
	}
	if len(set) > 0 {
		g.env = append(slices.Clip(g.env), set)
	}
	r.tell(func(e Events) { e.StepPrepared(res, g.prepared(s, g.env[len(f.env):])) })
	return g, nil
}

// prepared describes the step s, whose frame is f. set is the environment that the step sets.
func (f *frame) prepared(s *pb.Step, set []layer) Prepared {
	p := Prepared{Definition: f.def, Script: f.isScript(), Env: set}
	if f.files != nil {
		p.FilesDir = f.files.in.join(f.files.name)
	}
	switch {
	case s.GetDefinition() != nil: // an inline definition has no inputs of its own
	case f.isScript():
		p.Inputs = maps.Clone(f.inputs)
		p.Inputs[inputScript] = f.given
		if f.given.Kind() == expr.Null {
			delete(p.Inputs, inputScript)
		}
	default:
		p.Inputs = f.inputs
	}
	return p
}

// enter makes g the frame of the step that s, in c, refers to, and records its source in res.
func (r *Runner) enter(ctx context.Context, c, g *frame, s *pb.Step, res *StepResult) error {
	inputs := s.GetInputs()
	script, literal := literalScript(s)
	if literal {
		inputs = maps.Clone(inputs)
		inputs[inputScript] = structpb.NewStringValue("")
	}
	given, err := r.evalValues(c, lang.PartInputs, inputs)
	if err != nil {
		return err
	}
	ref := s.GetReference()
	if ref.GetProtocol() == pb.Reference_dynamic {
		ref, err = lang.Resolve(ref, func(template string) (string, error) {
			v, err := r.text(c, lang.PartReference, template, "reference")
			return v.Text(), err
		})
		if err != nil {
			return err
		}
	}
	if ref.GetProtocol() == pb.Reference_action {
		g.action, g.outer, g.inputs = ref, c, given
		g.def = &pb.Definition{Type: pb.DefinitionType_steps}
		return r.hideInputs(given, given)
	}
	found, err := r.load(ctx, c, ref)
	res.Source = found.Source
	if err != nil {
		return err
	}
	res.addWarnings(found.warnings)
	r.tell(func(e Events) { e.StepFound(res, found) })
	g.def, g.builtin = found.Definition, found.Builtin
	if found.Builtin != "" {
		g.outer = c
	} else {
		g.dir, g.root, g.places = found.Dir, found.Root, found.places
	}
	if g.inputs, err = lang.Bind(found.Definition.GetSpec(), given); err != nil {
		return err
	}
	for _, name := range lang.Undeclared(found.Definition.GetSpec(), g.inputs) {
		res.warn("input %q: its value comes from a masked variable, and the input is not declared sensitive; it is masked "+
			"all the same; declare the input with sensitive: true", name)
	}
	switch {
	case !g.isScript():
		if err := r.hideInputs(g.inputs, given); err != nil {
			return err
		}
	case literal:
		g.script = script
		g.given, _ = expr.New(script) // null if it is too long
	case g.builtin == lang.ManagerScriptStep:
		g.given = given[inputScript]
		if g.script, err = r.managerScript(g); err != nil {
			return err
		}
	default:
		g.given, g.script = given[inputScript], g.inputs[inputScript].Text()
	}
	g.restrict(found.Definition.GetSpec())
	if g.isForeign() {
		g.def = &pb.Definition{Type: pb.DefinitionType_steps, Spec: g.def.GetSpec()}
	}
	return nil
}

// hideInputs masks sensitive inputs, which were made from given.
func (r *Runner) hideInputs(inputs, given map[string]expr.Value) error {
	for _, name := range sortedkeys.Of(inputs) {
		// Masks the secret parts of a derived value and leaves the rest readable.
		if given[name].Sensitive() && r.cfg.Secrets.Holds(inputs[name].Text()) {
			continue
		}
		if err := r.hideValue(inputs[name]); err != nil {
			return fmt.Errorf("mask the input %q: %w", name, err)
		}
	}
	return nil
}

// restrict hides all variables from f that spec does not request.
func (f *frame) restrict(spec *pb.Spec) {
	if req := spec.GetSpec().GetRequests(); req != nil {
		f.requests = append(slices.Clip(f.requests), req)
	}
}

// The inputs of the script step.
const (
	inputScript = "script"
	inputShell  = "shell"
)

// literalScript returns the script of a step if it has no expressions. Then its length has no limit, which a value has.
func literalScript(s *pb.Step) (string, bool) {
	script, ok := s.GetInputs()[inputScript].GetKind().(*structpb.Value_StringValue)
	if !ok || s.GetReference().GetProtocol() != pb.Reference_builtin {
		return "", false
	}
	return lang.Literal(script.StringValue)
}

// evalValues evaluates values and their names: the inputs of a call or the outputs of a definition, which is part.
func (r *Runner) evalValues(
	f *frame, part lang.Part, values map[string]*structpb.Value,
) (map[string]expr.Value, error) {
	given := make(map[string]expr.Value, len(values))
	for _, key := range sortedkeys.Of(values) {
		name, err := r.text(f, part, key, "a name of "+string(part))
		if err != nil {
			return nil, err
		}
		label := fmt.Sprintf("%s %q", strings.TrimSuffix(string(part), "s"), name)
		if _, twice := given[name.Text()]; twice {
			return nil, fmt.Errorf("%s: two keys of %s give this name", label, part)
		}
		if given[name.Text()], err = r.evalValue(f, part, values[key], label); err != nil {
			return nil, err
		}
	}
	return given, nil
}

// runSequence runs a step that is a list of steps.
func (r *Runner) runSequence(ctx context.Context, g *frame, res *StepResult) outcome {
	r.announce(res, Sequence)
	if err := r.list(len(g.def.GetSteps())); err != nil {
		return failed(err)
	}
	res.Steps = notRun(g.def, res.Path)
	before := r.cuts
	r.sequence(ctx, g, res.Steps)
	res.Exports = map[string]expr.Value{}
	for _, below := range res.Steps {
		if below.Status == Success || below.Kind == Sequence {
			maps.Copy(res.Exports, below.Exports)
		}
	}
	tooMuch := r.give(size(res.Exports))
	switch stopped := r.stopping(); {
	case r.cuts > before && stopped != nil && !g.after:
		return stopped.outcome(0)
	case r.cuts > before:
		return outcome{status: Cancelled, why: context.Cause(ctx).Error()}
	case g.failed != nil:
		return outcome{status: Failure, code: g.failed.ExitCode, why: g.failed.Message, system: g.failed.System}
	case tooMuch != nil:
		return failed(tooMuch)
	}
	outputs, warnings, err := r.sequenceOutputs(g)
	res.addWarnings(warnings)
	if tooMuch = r.give(size(outputs)); tooMuch == nil {
		res.Outputs = outputs
	} else if err == nil {
		err = tooMuch
	}
	if err != nil {
		return failed(err)
	}
	return outcome{status: Success}
}

// sequenceOutputs returns the outputs of a list of steps that succeeded.
func (r *Runner) sequenceOutputs(g *frame) (map[string]expr.Value, []string, error) {
	spec, dialect := g.def.GetSpec(), g.def.GetDialect()
	if name := g.def.GetDelegate(); name != "" {
		ran := g.ran[name]
		if ran == nil || ran.Status != Success {
			return nil, nil, fmt.Errorf("outputs: the step %q, which should provide them, did not run", name)
		}
		if spec.GetSpec().GetDelegate() {
			return ran.Outputs, nil, nil
		}
		return r.bindOutputs(spec, dialect, ran.Outputs)
	}
	given, err := r.evalValues(g, lang.PartOutputs, g.def.GetOutputs())
	if err != nil {
		return nil, nil, err
	}
	return r.bindOutputs(spec, dialect, given)
}

// bindOutputs checks given as the outputs of a list of steps. Secret outputs are masked from now on.
func (r *Runner) bindOutputs(
	spec *pb.Spec, dialect pb.Definition_Dialect, given map[string]expr.Value,
) (map[string]expr.Value, []string, error) {
	outputs, warnings, err := lang.BindOutputs(spec, dialect, given)
	if err := r.hideValues(outputs); err != nil {
		return nil, warnings, err
	}
	r.taint(outputs)
	return outputs, warnings, err
}

// give counts n bytes of outputs, exports or saved states of a step. The error says that the job has too many: then
// they are not kept.
func (r *Runner) give(n int) error {
	if r.given+n > maxResults {
		return fmt.Errorf("the outputs, exports and saved states of the job's steps have more than %d bytes in all; pass "+
			"large data in files", maxResults)
	}
	r.given += n
	return nil
}
