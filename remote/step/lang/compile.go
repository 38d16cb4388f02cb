package lang

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// compiler turns a draft into a definition. It makes the checks that a schema can make on the way, and postpones the
// others to the end: then both report the same first mistake.
type compiler struct {
	checks []func() error
}

// afterwards postpones a check.
func (c *compiler) afterwards(check func() error) { c.checks = append(c.checks, check) }

// later postpones err, if it is not nil.
func (c *compiler) later(err error) {
	if err != nil {
		c.afterwards(func() error { return err })
	}
}

// compile compiles a step.
func compile(d *draftDefinition) (*pb.Definition, error) {
	var c compiler
	s := &scope{spec: d.spec}
	def, err := c.definition(d, s)
	if err != nil {
		return nil, err
	}
	for _, check := range c.checks {
		if err := check(); err != nil {
			return nil, err
		}
	}
	return def, nil
}

// compileSequence compiles a job with inputs. If it is a command, that becomes its only step.
func compileSequence(d *draftDefinition) (*pb.Definition, error) {
	def, err := compile(d)
	if err == nil && def.GetType() == pb.DefinitionType_exec {
		def = sequenceOf(def)
	}
	return def, err
}

// compileJob compiles a job that gets no inputs.
func compileJob(d *draftDefinition) (*pb.Definition, error) {
	def, err := compileSequence(d)
	if err != nil {
		return nil, err
	}
	if d.spec != nil {
		for _, in := range d.spec.inputs {
			if in.preset == nil {
				return nil, in.name.at.beyond().errorf("the input%s is required, and a job is given none; give it a default",
					Quote(in.name.text))
			}
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

func (c *compiler) definition(d *draftDefinition, s *scope) (def *pb.Definition, err error) {
	def = &pb.Definition{Dialect: pb.Definition_v1}
	if d.v0 {
		def.Dialect = pb.Definition_v0
	}
	s.v0 = d.v0
	if def.Spec, err = c.spec(d.spec, d.v0); err != nil {
		return nil, err
	}
	switch {
	case d.run != nil && d.exec != nil:
		return nil, d.exec.at.errorf("there are both run and exec; write one of them")
	case d.exec != nil:
		err = c.execDefinition(d, def, s)
	case d.run != nil:
		err = c.runDefinition(d, def, s)
	default:
		return nil, d.at.errorf("there are no steps; write run: and below it a list of them")
	}
	return def, err
}

func (c *compiler) execDefinition(d *draftDefinition, def *pb.Definition, s *scope) (err error) {
	switch {
	case len(d.outputs) > 0:
		return d.outputs[0].name.at.errorf("outputs belongs to run; a command writes its outputs to ${{ output_file }}")
	case d.delegate.given:
		return d.delegate.at.errorf("delegate belongs to run; a command writes its outputs to ${{ output_file }}")
	}
	s.files = true
	def.Type = pb.DefinitionType_exec
	if def.Env, err = c.env(d.env, s, 0); err != nil {
		return err
	}
	def.Exec, err = c.exec(d.exec, s, 0)
	return err
}

func (c *compiler) runDefinition(d *draftDefinition, def *pb.Definition, s *scope) (err error) {
	def.Type = pb.DefinitionType_steps
	if def.Env, err = c.env(d.env, s, 0); err != nil {
		return err
	}
	if def.Steps, err = c.run(d.run, s, d.named && !d.v0); err != nil {
		return err
	}
	if def.Outputs, err = c.values(d.outputs, s, len(d.run.steps), "output"); err != nil {
		return err
	}
	def.Delegate = d.delegate.text
	if d.delegate.given {
		if err := checkName(d.delegate, "delegate"); err != nil {
			return err
		}
	}
	c.afterwards(func() error { return d.checkOutputs(s) })
	return nil
}

// checkOutputs compares the outputs of the definition with its spec.
func (d *draftDefinition) checkOutputs(s *scope) error {
	spec := d.spec
	if spec == nil {
		spec = &draftSpec{}
	}
	declared := make([]string, len(spec.outputs))
	for i, p := range spec.outputs {
		declared[i] = p.name.text
	}
	for _, out := range d.outputs {
		if slices.Contains(declared, out.name.text) {
			continue
		}
		return out.name.at.beyond().errorf("the spec has no output%s%s", Quote(out.name.text),
			Suggest(out.name.text, declared, "; declare it in spec: outputs"))
	}
	switch {
	case d.delegate.given && s.names[d.delegate.text] == 0:
		return d.delegate.at.beyond().errorf("delegate names %q, and no step of run has that name", d.delegate.text)
	case d.delegate.given && len(d.outputs) > 0:
		return d.delegate.at.beyond().errorf("there are both outputs and delegate; write one of them")
	case spec.delegate.given && !d.delegate.given:
		return spec.delegate.at.beyond().errorf("the spec delegates its outputs to a step; name the step with delegate: " +
			"below run")
	}
	return nil
}

// run compiles a list of steps, and sets the names of the scope.
func (c *compiler) run(run *draftRun, s *scope, named bool) ([]*pb.Step, error) {
	if len(run.steps) == 0 {
		return nil, run.at.errorf("there are no steps; write at least one, such as - script: echo hello")
	}
	list := make([]*pb.Step, len(run.steps))
	s.names = make(map[string]int, len(run.steps))
	for i := range run.steps {
		d := &run.steps[i]
		if named && !d.name.given {
			return nil, d.at.errorf("the step has no name; in a definition every step has one")
		}
		var err error
		if list[i], err = c.step(d, s, i, named); err != nil {
			return nil, err
		}
		name := list[i].GetName()
		if first := s.names[name]; first > 0 {
			c.later(d.nameAt().beyond().errorf("the name %q is taken by step %d; the names of a list's steps must differ", name,
				first))
			continue
		}
		s.names[name] = i + 1
	}
	return list, nil
}

// step compiles the step at index i of its list.
func (c *compiler) step(d *draft, s *scope, i int, named bool) (*pb.Step, error) {
	p := &pb.Step{}
	var err error
	if p.Name, err = stepName(d, i); err != nil {
		return nil, err
	}
	if err := d.onlyOne(); err != nil {
		return nil, err
	}
	if p.When, err = compileWhen(d.when); err != nil {
		return nil, err
	}
	if p.Timeout, err = compileTimeout(d.timeout); err != nil {
		return nil, err
	}
	p.Condition = c.condition(d.condition, s.in(p.GetName()), i)
	// A command or script has files for outputs and exports. A called step has files of its own.
	inner := s.in(p.GetName())
	inner.files = d.ref == nil && d.run == nil
	if p.Env, err = c.env(d.env, inner, i); err != nil {
		return nil, err
	}
	return p, c.way(d, p, inner, i, named)
}

// way compiles the code of the step.
func (c *compiler) way(d *draft, p *pb.Step, s *scope, i int, named bool) (err error) {
	switch {
	case d.exec != nil:
		def := &pb.Definition{Type: pb.DefinitionType_exec, Dialect: s.dialect()}
		def.Exec, err = c.exec(d.exec, s, i)
		p.Definition = def
	case d.run != nil:
		def := &pb.Definition{Type: pb.DefinitionType_steps, Dialect: s.dialect()}
		def.Steps, err = c.run(d.run, &scope{spec: s.spec, v0: s.v0, outer: s, index: i}, named)
		p.Definition = def
	case d.script.given:
		return c.script(d, p, s, i)
	default:
		p.Reference, err = c.reference(d, p, s, i)
		if err != nil {
			return err
		}
		p.Inputs, err = c.values(d.inputs, s, i, "input")
		if err == nil && isScript(p.GetReference()) {
			err = joinScript(d, p)
		}
	}
	return err
}

// script compiles the short form of a call of the script step.
func (c *compiler) script(d *draft, p *pb.Step, s *scope, i int) (err error) {
	if strings.TrimSpace(d.script.text) == "" {
		return d.script.at.errorf("script is empty; write the commands for the shell")
	}
	if err := c.template(d.script, s, i, "script"); err != nil {
		return err
	}
	p.Step, p.Reference = scriptURL, scriptReference()
	if p.Inputs, err = c.values(d.inputs, s, i, "input"); err != nil {
		return err
	}
	if p.Inputs == nil {
		p.Inputs = map[string]*structpb.Value{}
	}
	p.Inputs[inputScript] = structpb.NewStringValue(d.script.text)
	return nil
}

// onlyOne checks that the step names its code, in one way.
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

func stepName(d *draft, i int) (string, error) {
	if !d.name.given {
		return fmt.Sprintf("step_%d", i+1), nil
	}
	return d.name.text, checkName(d.name, "name")
}

func (d *draft) nameAt() place {
	if d.name.given {
		return d.name.at
	}
	return d.at
}

func compileWhen(w word) (string, error) {
	switch {
	case !w.given:
		return OnSuccess, nil
	case slices.Contains(whens, w.text):
		return w.text, nil
	default:
		return "", w.at.errorf("when is one of %s", strings.Join(whens, ", "))
	}
}

// compileTimeout reads a time such as 90s, 5m or 1h30m.
func compileTimeout(w word) (*durationpb.Duration, error) {
	if !w.given {
		return nil, nil
	}
	d, err := time.ParseDuration(w.text)
	if err != nil || !timeoutPattern.MatchString(w.text) {
		return nil, w.at.errorf("timeout is a time such as 90s, 5m or 1h30m")
	}
	if d <= 0 {
		return nil, w.at.beyond().errorf("the timeout is 0; leave the key out for no timeout")
	}
	return durationpb.New(d), nil
}

func (c *compiler) exec(d *draftExec, s *scope, i int) (*pb.Exec, error) {
	if len(d.command) == 0 {
		return nil, d.commandAt.errorf("command is empty; write the program and its arguments, such as [make, test]")
	}
	e := &pb.Exec{Command: make([]string, len(d.command)), WorkDir: d.workDir.text}
	for j, w := range d.command {
		if j == 0 && w.text == "" {
			return nil, w.at.errorf("the program is empty; write its name or path")
		}
		if err := c.template(w, s, i, "command"); err != nil {
			return nil, err
		}
		if len(w.text) > MaxArg {
			c.later(w.at.beyond().errorf("the argument has %d bytes, at most %d can be passed; put it into a file", len(w.text),
				MaxArg))
		}
		e.Command[j] = w.text
	}
	var err error
	if e.Timeout, err = compileTimeout(d.timeout); err != nil {
		return nil, err
	}
	return e, c.template(d.workDir, s, i, "work_dir")
}

func (c *compiler) env(pairs []pair, s *scope, i int) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	env := make(map[string]string, len(pairs))
	for _, p := range pairs {
		if err := c.key(p.key, s, i, "env"); err != nil {
			return nil, err
		}
		if !hasExpression(p.key.text) && !isName(p.key.text) {
			return nil, p.key.at.errorf("%s", badVariable(p.key.text))
		}
		if err := c.template(p.value, s, i, "env"); err != nil {
			return nil, err
		}
		env[p.key.text] = p.value.text
	}
	c.later(checkSizes(pairs))
	return env, nil
}

func checkSizes(pairs []pair) error {
	total := 0
	for _, p := range pairs {
		size := len(p.key.text) + 1 + len(p.value.text)
		if size > MaxArg {
			return p.value.at.beyond().errorf("the variable has %d bytes, at most %d can be passed; put it into a file", size,
				MaxArg)
		}
		if total += size; total > MaxEnv {
			return p.value.at.beyond().errorf("the variables have more than %d bytes in all; put some into files", MaxEnv)
		}
	}
	return nil
}

// values compiles the inputs of a call or the outputs of a definition. what is "input" or "output".
func (c *compiler) values(list []namedValue, s *scope, i int, what string) (map[string]*structpb.Value, error) {
	if len(list) == 0 {
		return nil, nil
	}
	values := make(map[string]*structpb.Value, len(list))
	for _, v := range list {
		if err := c.key(v.name, s, i, what); err != nil {
			return nil, err
		}
		if !hasExpression(v.name.text) {
			if err := checkName(v.name, "name of the "+what); err != nil {
				return nil, err
			}
		}
		label := what + Quote(v.name.text)
		for _, text := range v.value.texts {
			if err := c.template(text, s, i, label); err != nil {
				return nil, err
			}
		}
		values[v.name.text] = v.value.value
	}
	return values, nil
}
