package lang

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stepmux/stepmux/internal/yamltree"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// compiler turns a draft into a definition. Checks that a schema can make come first, and the others are postponed to
// the end: so both report the same first mistake.
type compiler struct {
	yamltree.First
	checks  []func() error // the postponed checks
	matched int            // the sum for maxMatch
}

// afterwards postpones a check.
func (c *compiler) afterwards(check func() error) { c.checks = append(c.checks, check) }

// later postpones err, if it is not nil.
func (c *compiler) later(err error) {
	if err != nil {
		c.afterwards(func() error { return err })
	}
}

// compileStep compiles the definition of a step.
func compileStep(d *draftDefinition) (*pb.Definition, error) {
	var c compiler
	def := c.definition(d)
	for i := 0; c.Err == nil && i < len(c.checks); i++ {
		c.Fail(c.checks[i]())
	}
	if c.Err != nil {
		return nil, c.Err
	}
	return def, nil
}

// compileSequence compiles a job with inputs. A job that is a single command becomes a list with one step.
func compileSequence(d *draftDefinition) (*pb.Definition, error) {
	def, err := compileStep(d)
	if err == nil && def.GetType() == pb.DefinitionType_exec {
		def = sequenceOf(def)
	}
	return def, err
}

// compileJob compiles a job without inputs.
func compileJob(d *draftDefinition) (*pb.Definition, error) {
	def, err := compileSequence(d)
	if err != nil {
		return nil, err
	}
	for _, in := range d.spec.inputs {
		if in.preset == nil {
			return nil, in.name.at.errorf("the input%s is required, and a job is given none; give it a default",
				Quote(in.name.text))
		}
	}
	return def, nil
}

// sequenceOf returns a definition whose only step is the command def.
func sequenceOf(def *pb.Definition) *pb.Definition {
	const name = "step_1"
	outer := &pb.Definition{
		Type:    pb.DefinitionType_steps,
		Dialect: def.GetDialect(),
		Spec:    def.GetSpec(),
		Steps:   []*pb.Step{{Name: name, When: OnSuccess, Definition: def}},
	}
	content := def.GetSpec().GetSpec()
	if content.GetDelegate() || len(content.GetOutputs()) > 0 {
		outer.Delegate = name
	}
	def.Spec = &pb.Spec{Spec: &pb.Spec_Content{Outputs: content.GetOutputs(), Delegate: content.GetDelegate()}}
	return outer
}

func (c *compiler) definition(d *draftDefinition) *pb.Definition {
	s := &scope{spec: &d.spec, inputs: paramSet(d.spec.inputs), v0: d.v0, files: d.exec != nil}
	def := &pb.Definition{Dialect: s.dialect(), Spec: c.spec(&d.spec)}
	switch {
	case d.run != nil && d.exec != nil:
		c.Fail(d.exec.at.errorf("there are both run and exec; write one of them"))
	case d.run == nil && d.exec == nil:
		c.Fail(d.at.errorf("there are no steps; write run: and below it a list of them"))
	case d.run != nil:
		c.runDefinition(d, def, s)
	case len(d.outputs) > 0:
		c.Fail(d.outputs[0].name.at.errorf("outputs belongs to run; a command writes its outputs to ${{ output_file }}"))
	case d.delegate.given:
		c.Fail(d.delegate.at.errorf("delegate belongs to run; a command writes its outputs to ${{ output_file }}"))
	default:
		def.Type, def.Env, def.Exec = pb.DefinitionType_exec, c.env(d.env, s), c.exec(d.exec, s)
	}
	return def
}

func (c *compiler) runDefinition(d *draftDefinition, def *pb.Definition, s *scope) {
	def.Type, def.Env = pb.DefinitionType_steps, c.env(d.env, s)
	def.Steps = c.run(d.run, s, d.named)
	def.Outputs = c.values(d.outputs, s.in("", len(d.run.steps)), "output")
	def.Delegate = d.delegate.text
	if d.delegate.given {
		c.Fail(checkName(d.delegate, "delegate"))
	}
	c.afterwards(func() error { return d.checkOutputs(s) })
}

// checkOutputs compares the outputs of the definition with its spec.
func (d *draftDefinition) checkOutputs(s *scope) error {
	declared := paramSet(d.spec.outputs)
	for _, out := range d.outputs {
		if declared[out.name.text] {
			continue
		}
		return out.name.at.errorf("the spec has no output%s%s", Quote(out.name.text),
			Suggest(out.name.text, paramNames(d.spec.outputs), "; declare it in spec: outputs"))
	}
	switch {
	case d.delegate.given && s.names[d.delegate.text] == 0:
		return d.delegate.at.errorf("delegate names %q, and no step of run has that name", d.delegate.text)
	case d.delegate.given && len(d.outputs) > 0:
		return d.delegate.at.errorf("there are both outputs and delegate; write one of them")
	case d.spec.delegate.given && !d.delegate.given:
		return d.spec.delegate.at.errorf("the spec delegates its outputs to a step; name the step with delegate: " +
			"below run")
	}
	return nil
}

// run compiles a list of steps, and sets the names of the scope.
func (c *compiler) run(run *draftRun, s *scope, named bool) []*pb.Step {
	if len(run.steps) == 0 {
		c.Fail(run.at.errorf("there are no steps; write at least one, such as - script: echo hello"))
	}
	list := make([]*pb.Step, len(run.steps))
	s.names = make(map[string]int, len(run.steps))
	for i := range run.steps {
		d := &run.steps[i]
		if named && !d.name.given {
			c.Fail(d.at.errorf("the step has no name; in a definition every step has one"))
		}
		list[i] = c.step(d, s, i, named)
		name := list[i].GetName()
		if first := s.names[name]; first > 0 {
			at := d.at
			if d.name.given {
				at = d.name.at
			}
			c.later(at.errorf("the name %q is taken by step %d; the names of a list's steps must differ", name, first))
			continue
		}
		s.names[name] = i + 1
	}
	return list
}

// step compiles the step at index i of its list.
func (c *compiler) step(d *draft, list *scope, i int, named bool) *pb.Step {
	p := &pb.Step{Name: d.stepName(i), When: cmp.Or(d.when.text, OnSuccess)}
	if d.name.given {
		c.Fail(checkName(d.name, "name"))
	}
	c.Fail(d.onlyOne())
	if d.when.given && !slices.Contains(whens, d.when.text) {
		c.Fail(d.when.at.errorf("when is one of %s", strings.Join(whens, ", ")))
	}
	p.Timeout = c.timeout(d.timeout)
	s := list.in(p.GetName(), i)
	p.Condition = c.condition(d.condition, s)
	// A command or a script has files for outputs and exports. A called step has its own.
	s.files = d.ref == nil && d.run == nil
	p.Env = c.env(d.env, s)
	switch {
	case d.exec != nil:
		p.Definition = &pb.Definition{Type: pb.DefinitionType_exec, Dialect: s.dialect(), Exec: c.exec(d.exec, s)}
	case d.run != nil:
		steps := c.run(d.run, &scope{spec: s.spec, inputs: s.inputs, v0: s.v0, outer: s}, named)
		p.Definition = &pb.Definition{Type: pb.DefinitionType_steps, Dialect: s.dialect(), Steps: steps}
	case d.script.given:
		c.script(d, p, s)
	case d.ref != nil:
		p.Reference = c.reference(d.ref, p, s)
		if d.ref.action {
			p.Inputs = c.valuesOf(d.inputs, s, "input", checkActionInput)
		} else {
			p.Inputs = c.values(d.inputs, s, "input")
		}
		if isScript(p.GetReference()) {
			c.Fail(joinScript(d, p))
		}
	}
	return p
}

// stepName returns the name of the step at index i of its list.
func (d *draft) stepName(i int) string {
	if d.name.given {
		return d.name.text
	}
	return fmt.Sprintf("step_%d", i+1)
}

// script compiles the short form of a call of the script step.
func (c *compiler) script(d *draft, p *pb.Step, s *scope) {
	if strings.TrimSpace(d.script.text) == "" {
		c.Fail(d.script.at.errorf("script is empty; write the commands for the shell"))
	}
	c.template(d.script, s, "script")
	p.Step, p.Reference = scriptURL, scriptReference()
	p.Inputs = c.values(d.inputs, s, "input")
	if p.Inputs == nil {
		p.Inputs = map[string]*structpb.Value{}
	}
	p.Inputs[inputScript] = structpb.NewStringValue(d.script.text)
}

// onlyOne checks that the step names its code exactly once.
func (d *draft) onlyOne() error {
	switch {
	case len(d.ways) == 0:
		return d.at.errorf("the step has nothing to run; give it a script, a step, an exec or a run")
	case len(d.ways) > 1:
		return d.ways[1].at.errorf("the step has both %s and %s; a step has one of them", d.ways[0].text, d.ways[1].text)
	}
	way := d.ways[0].text
	for _, in := range d.inputs {
		switch {
		case way == "script" && in.name.text == inputShell:
		case way == "script":
			return in.name.at.errorf("script takes no inputs but %s; pass values in env", inputShell)
		case way == "exec" || way == "run":
			return d.inputsAt.errorf("%s takes no inputs; pass values in env", way)
		}
	}
	return nil
}

// timeout reads a time such as 90s, 5m or 1h30m.
func (c *compiler) timeout(w word) *durationpb.Duration {
	if !w.given {
		return nil
	}
	d, err := time.ParseDuration(w.text)
	switch {
	case err != nil || !timeoutPattern().MatchString(w.text):
		c.Fail(w.at.errorf("timeout is a time such as 90s, 5m or 1h30m"))
	case d <= 0:
		c.Fail(w.at.errorf("the timeout is 0; leave the key out for no timeout"))
	}
	return durationpb.New(d)
}

func (c *compiler) exec(d *draftExec, s *scope) *pb.Exec {
	if len(d.command) == 0 {
		c.Fail(d.commandAt.errorf("command is empty; write the program and its arguments, such as [make, test]"))
	}
	e := &pb.Exec{Command: make([]string, len(d.command)), WorkDir: d.workDir.text}
	for j, w := range d.command {
		if j == 0 && w.text == "" {
			c.Fail(w.at.errorf("the program is empty; write its name or path"))
		}
		c.template(w, s, "command")
		if len(w.text) > MaxArg {
			c.later(w.at.errorf("the argument has %d bytes, at most %d can be passed; put it into a file", len(w.text),
				MaxArg))
		}
		e.Command[j] = w.text
	}
	e.Timeout = c.timeout(d.timeout)
	c.template(d.workDir, s, "work_dir")
	return e
}

func (c *compiler) env(pairs []pair, s *scope) map[string]string {
	if len(pairs) == 0 {
		return nil
	}
	env := make(map[string]string, len(pairs))
	for _, p := range pairs {
		c.key(p.key, s, "env")
		if !hasExpression(p.key.text) && !isName(p.key.text) {
			c.Fail(p.key.at.errorf("%s", badVariable(p.key.text)))
		}
		c.template(p.value, s, "env")
		env[p.key.text] = p.value.text
	}
	c.later(checkSizes(pairs))
	return env
}

func checkSizes(pairs []pair) error {
	total := 0
	for _, p := range pairs {
		size := len(p.key.text) + 1 + len(p.value.text)
		if size > MaxArg {
			return p.value.at.errorf("the variable has %d bytes, at most %d can be passed; put it into a file", size,
				MaxArg)
		}
		if total += size; total > MaxEnv {
			return p.value.at.errorf("the variables have more than %d bytes in all; put some into files", MaxEnv)
		}
	}
	return nil
}

// values compiles the inputs of a call or the outputs of a definition. label is "input" or "output".
func (c *compiler) values(list []namedValue, s *scope, label string) map[string]*structpb.Value {
	return c.valuesOf(list, s, label, func(w word) error { return checkName(w, "name of the "+label) })
}

// valuesOf is values with another check of names.
func (c *compiler) valuesOf(
	list []namedValue, s *scope, label string, check func(word) error,
) map[string]*structpb.Value {
	if len(list) == 0 {
		return nil
	}
	values := make(map[string]*structpb.Value, len(list))
	for _, v := range list {
		c.key(v.name, s, label)
		if !hasExpression(v.name.text) {
			c.Fail(check(v.name))
		}
		for _, text := range v.value.texts {
			c.template(text, s, label+Quote(v.name.text))
		}
		values[v.name.text] = v.value.value
	}
	return values
}
