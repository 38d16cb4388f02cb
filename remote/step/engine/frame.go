package engine

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stepmux/stepmux/internal/sortedkeys"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// frame is a running definition, with the values that its expressions can read.
type frame struct {
	def     *pb.Definition
	builtin string        // name of a built-in step
	action  *pb.Reference // reference of an action
	script  string        // the text of a script step
	// given is the value of a script step's script. It is null if the text is too long for a value. It decides whether
	// the text is secret: the input itself is always sensitive, because it may contain secrets.
	given expr.Value
	// outer is the frame of the list in which an inline definition stands. Its names are visible inside.
	outer *frame
	dir   string  // directory of the definition; its references are relative to it
	root  string  // directory that references must not leave, or empty
	env   []layer // set by the job's text so far, the innermost last
	// requests are the outside variables that the definition asks for. Nil means all of them.
	requests []*pb.Spec_Requests
	inputs   map[string]expr.Value
	files    *files // of a step that runs a command
	// places finds the places of the expressions. They stand in the steps that within names, the innermost last, or, if
	// within is empty, in the definition itself.
	places *lang.Locator
	within []string
	limits *limit
	// interrupt says that its processes get SIGINT before SIGTERM.
	interrupt bool

	ran    map[string]*StepResult // the finished steps
	failed *StepResult            // the first failed step
	after  bool                   // it runs although the job was stopped
}

// isScript reports whether the frame is of a built-in step that runs a script.
func (f *frame) isScript() bool {
	return f.builtin == lang.ScriptStep || f.builtin == lang.LegacyScriptStep || f.builtin == lang.ManagerScriptStep
}

// mayKnow reports whether the definition may know the environment variable name from outside. PATH is always allowed:
// without it no program is found.
func (f *frame) mayKnow(name string) bool {
	return name == "PATH" || !slices.ContainsFunc(f.requests, func(req *pb.Spec_Requests) bool {
		return !slices.Contains(req.GetEnv(), name)
	})
}

// knownVars are the job variables that the definition of f may know.
func (r *Runner) knownVars(f *frame) map[string]expr.Value {
	known := maps.Clone(r.varValues)
	maps.DeleteFunc(known, func(name string, _ expr.Value) bool {
		return slices.ContainsFunc(f.requests, func(req *pb.Spec_Requests) bool {
			return !slices.Contains(req.GetVars(), name)
		})
	})
	return known
}

// with returns a copy of the frame for a step that sets env and has files.
func (f *frame) with(env layer, files *files) *frame {
	inner := *f
	if len(env) > 0 {
		inner.env = append(slices.Clip(f.env), env)
	}
	inner.files = files
	return &inner
}

// at returns a copy of the frame for the texts of s, a step of its definition.
func (f *frame) at(s *pb.Step) *frame {
	inner := *f
	inner.within = append(slices.Clip(f.within), s.GetName())
	return &inner
}

// text evaluates a template, a text of part, to a text. Errors call it label.
func (r *Runner) text(f *frame, part lang.Part, template, label string) (expr.Value, error) {
	v, err := r.eval(f, part, template, label)
	if err != nil || v.Kind() == expr.String {
		return v, err
	}
	t, err := made(v.Text(), label)
	return t.MarkLike(v), err
}

// eval evaluates a template, a text of part.
func (r *Runner) eval(f *frame, part lang.Part, template, label string) (expr.Value, error) {
	if literal, ok := lang.Literal(template); ok {
		return made(literal, label)
	}
	t, err := expr.ParseTemplate(template)
	if err != nil {
		return expr.Value{}, r.inside(f, part, template, label, err)
	}
	r.tellReads(t.References())
	scope, err := r.scope(f, t.References())
	if err != nil {
		return expr.Value{}, r.inside(f, part, template, label, err)
	}
	v, err := t.Eval(scope)
	if err != nil {
		return v, r.inside(f, part, template, label, err)
	}
	return v, nil
}

// condition evaluates the if of a step in f.
func (r *Runner) condition(f *frame, text string) (bool, error) {
	wrong := func(err error) error { return r.inside(f, lang.PartCondition, text, "if", err) }
	e, err := expr.Parse(text)
	if err != nil {
		return false, wrong(err)
	}
	r.tellReads(e.References())
	scope, err := r.scope(f, e.References())
	if err != nil {
		return false, wrong(err)
	}
	v, err := e.Eval(scope)
	if err != nil {
		return false, wrong(err)
	}
	if v.Kind() != expr.Boolean {
		return false, wrong(fmt.Errorf(
			"the expression gives a value of type %s, and must give a boolean; compare it with something",
			lang.TypeName(v.Kind())))
	}
	return v.Truthy(), nil
}

// maxLocated bounds the errors of a job that have a place: each costs another reading of the text.
const maxLocated = 20

// inside returns err, of an expression in template, with its place. template is a text of part.
func (r *Runner) inside(f *frame, part lang.Part, template, label string, err error) error {
	offset := 0
	bad, ok := errors.AsType[*expr.Error](err)
	if ok {
		offset = bad.Offset
	}
	where := ""
	if r.located++; r.located <= maxLocated {
		where = f.places.Locate(f.within, part, template, offset)
	}
	switch {
	case !ok:
	case bad.Hint != "":
		err = fmt.Errorf("%s; %s", bad.Message, bad.Hint)
	default:
		err = errors.New(bad.Message)
	}
	switch {
	case where != "":
		return fmt.Errorf("%s: %s: %w", where, label, err)
	case ok && bad.Line > 1:
		return fmt.Errorf("%s: line %d: %w", label, bad.Line, err)
	default:
		return fmt.Errorf("%s: %w", label, err)
	}
}

// evalValue evaluates the templates in v, a value of part.
func (r *Runner) evalValue(f *frame, part lang.Part, v *structpb.Value, label string) (expr.Value, error) {
	switch k := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		return r.eval(f, part, k.StringValue, label)
	case *structpb.Value_ListValue:
		items := make([]expr.Value, len(k.ListValue.GetValues()))
		for i, item := range k.ListValue.GetValues() {
			var err error
			if items[i], err = r.evalValue(f, part, item, label); err != nil {
				return expr.Value{}, err
			}
		}
		return made(items, label)
	case *structpb.Value_StructValue:
		fields := make(map[string]expr.Value, len(k.StructValue.GetFields()))
		for _, key := range sortedkeys.Of(k.StructValue.GetFields()) {
			var err error
			if fields[key], err = r.evalValue(f, part, k.StructValue.GetFields()[key], label); err != nil {
				return expr.Value{}, err
			}
		}
		return made(fields, label)
	default:
		return made(v, label)
	}
}

// made converts x to a value. Errors call it label.
func made(x any, label string) (expr.Value, error) {
	v, err := expr.New(x)
	if err != nil {
		return v, fmt.Errorf("%s: %w", label, err)
	}
	return v, nil
}

// evalEnv evaluates the names and values of env.
func (r *Runner) evalEnv(f *frame, env map[string]string) (layer, error) {
	if len(env) == 0 {
		return nil, nil
	}
	set := make(layer, len(env))
	total := 0
	for _, key := range sortedkeys.Of(env) {
		name, err := r.text(f, lang.PartEnv, key, "a key of env")
		if err != nil {
			return nil, err
		}
		label := "env " + name.String()
		value, err := r.text(f, lang.PartEnv, env[key], label)
		if err != nil {
			return nil, err
		}
		if err := lang.CheckVariable(name.Text(), value.Text()); err != nil {
			return nil, fmt.Errorf("env: %w", err)
		}
		if _, twice := set[name.Text()]; twice {
			return nil, fmt.Errorf("%s: two keys of env give this name", label)
		}
		if total += len(name.Text()) + 1 + len(value.Text()); total > lang.MaxEnv {
			return nil, fmt.Errorf("env: the variables have more than %d bytes in all; put some into files", lang.MaxEnv)
		}
		if err := r.hideValue(value); err != nil {
			return nil, fmt.Errorf("%s: mask it: %w", label, err)
		}
		set[name.Text()] = value
	}
	return set, nil
}

// scope returns the names that the references refs read in f.
func (r *Runner) scope(f *frame, refs []expr.Reference) (expr.Scope, error) {
	scope := expr.Scope{}
	for _, ref := range refs {
		name := ref.Path[0]
		if _, done := scope[name]; done {
			continue
		}
		v, known, err := r.name(f, name, refs)
		if err != nil {
			return nil, err
		}
		if known {
			scope[name] = v
		}
	}
	return scope, nil
}

// name returns the value of the context name in f.
func (r *Runner) name(f *frame, name string, refs []expr.Reference) (v expr.Value, known bool, err error) {
	switch name {
	case "env":
		v, err = expr.New(r.environment(f))
	case "inputs":
		v, err = expr.New(f.inputs)
	case "steps":
		v, err = f.stepsContext(refs)
	case "vars", "job":
		v, err = r.varsContext(f, name)
	case "step_dir", "func_dir":
		v, err = expr.New(f.dir)
	case "work_dir":
		v, err = expr.New(r.place.WorkDir)
	case "output_file", "export_file":
		if f.files == nil {
			return v, false, nil
		}
		f.files.wanted = true
		v, err = expr.New(f.files.path(strings.TrimSuffix(name, "_file")))
	default:
		return v, false, nil
	}
	return v, true, err
}

// varsContext returns the value of vars or job in f.
func (r *Runner) varsContext(f *frame, name string) (expr.Value, error) {
	if len(f.requests) == 0 {
		if name == "vars" {
			return r.vars, nil
		}
		return r.job, nil
	}
	if name == "vars" {
		return expr.New(r.knownVars(f))
	}
	return jobContext(r.knownVars(f))
}

// stepsContext returns the value of steps, with the finished steps that refs read.
func (f *frame) stepsContext(refs []expr.Reference) (expr.Value, error) {
	context := map[string]any{}
	for at := f; at != nil; at = at.outer {
		for _, ref := range refs {
			switch {
			case ref.Path[0] != "steps":
			case len(ref.Path) > 1:
				at.addStep(context, ref.Path[1])
			default:
				for name := range at.ran {
					at.addStep(context, name)
				}
			}
		}
	}
	return expr.New(context)
}

// addStep adds the step name to a context, unless an inner list has a step of that name.
func (f *frame) addStep(context map[string]any, name string) {
	res, ran := f.ran[name]
	if _, there := context[name]; !ran || there {
		return
	}
	context[name] = map[string]any{"outputs": res.Outputs, "exports": res.Exports, "status": res.Status.String()}
}
