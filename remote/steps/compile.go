package steps

import (
	"fmt"
	"strings"
)

// compile checks drafts and makes a definition of them. at is where a job without steps is refused.
func compile(at place, drafts []draft, env []pair) (*Definition, error) {
	switch {
	case len(drafts) == 0:
		return nil, at.errorf("there are no steps; write at least one, such as - script: echo hello")
	case len(drafts) > MaxSteps:
		return nil, at.errorf("%d steps are too many, at most %d are allowed", len(drafts), MaxSteps)
	}
	def := &Definition{Steps: make([]Step, len(drafts))}
	var err error
	if def.Env, err = compileEnv(env); err != nil {
		return nil, err
	}
	seen := make(map[string]int, len(drafts))
	for i, d := range drafts {
		s, err := compileStep(d, i)
		if err != nil {
			return nil, err
		}
		if first, taken := seen[s.Name]; taken {
			return nil, d.nameAt().errorf("the name %q is taken by step %d; the names of a job's steps must differ", s.Name, first+1)
		}
		seen[s.Name] = i
		def.Steps[i] = s
	}
	return def, nil
}

// compileStep compiles the step at index i of its list.
func compileStep(d draft, i int) (Step, error) {
	var s Step
	var err error
	if s.Name, err = stepName(d, i); err != nil {
		return s, err
	}
	if err := d.onlyOne(); err != nil {
		return s, err
	}
	if s.When, err = compileWhen(d.when); err != nil {
		return s, err
	}
	if s.Env, err = compileEnv(d.env); err != nil {
		return s, err
	}
	if d.exec != nil {
		s.Exec, err = compileExec(*d.exec)
		return s, err
	}
	if strings.TrimSpace(d.script.text) == "" {
		return s, d.script.at.errorf("script is empty; write what the shell shall run")
	}
	s.Script, err = literal(d.script)
	return s, err
}

// onlyOne checks that the step says what to run, in one way, and in one there is.
func (d draft) onlyOne() error {
	var ways []word
	if d.script.given {
		ways = append(ways, word{at: d.script.at, text: "script"})
	}
	if d.exec != nil {
		ways = append(ways, word{at: d.exec.at, text: "exec"})
	}
	var inputs *word
	for _, o := range d.other {
		if o.text == "inputs" {
			inputs = &o
		} else {
			ways = append(ways, o)
		}
	}
	switch {
	case len(ways) == 0:
		return d.at.errorf("the step has nothing to run; give it a script or an exec")
	case len(ways) > 1:
		return ways[1].at.errorf("the step has both %s and %s; a step has one of them", ways[0].text, ways[1].text)
	case ways[0].text != "script" && ways[0].text != "exec":
		return ways[0].at.errorf("%s is not supported by this version; use script or exec", ways[0].text)
	case inputs != nil:
		return inputs.at.errorf("%s takes no inputs; pass values in env", ways[0].text)
	}
	return nil
}

func stepName(d draft, i int) (string, error) {
	if !d.name.given {
		return fmt.Sprintf("step_%d", i+1), nil
	}
	if err := checkFixed(d.name); err != nil {
		return "", err
	}
	if len(d.name.text) > maxName || !isName(d.name.text) {
		return "", d.name.at.errorf("the name%s is not valid; use letters, digits and _, not a digit first, at most %d in all",
			quote(d.name.text), maxName)
	}
	return d.name.text, nil
}

func (d draft) nameAt() place {
	if d.name.given {
		return d.name.at
	}
	return d.at
}

func compileWhen(w word) (When, error) {
	if !w.given {
		return OnSuccess, nil
	}
	switch when := When(w.text); when {
	case OnSuccess, OnFailure, Always:
		return when, nil
	default:
		return "", w.at.errorf("when is one of %s, %s, %s", OnSuccess, OnFailure, Always)
	}
}

func compileExec(d draftExec) (*Exec, error) {
	if len(d.command) == 0 {
		return nil, d.commandAt.errorf("command is empty; write the program and its arguments, such as [make, test]")
	}
	e := &Exec{Command: make([]string, len(d.command))}
	for i, w := range d.command {
		arg, err := literal(w)
		switch {
		case err != nil:
			return nil, err
		case i == 0 && arg == "":
			return nil, w.at.errorf("the program is empty; write its name or path")
		case len(arg) > MaxArg:
			return nil, w.at.errorf("the argument has %d bytes, at most %d can be passed; put it into a file", len(arg), MaxArg)
		}
		e.Command[i] = arg
	}
	var err error
	e.WorkDir, err = literal(d.workDir)
	return e, err
}
