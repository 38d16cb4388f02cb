package lang

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/internal/spell"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/expr"
)

// The names that expressions can read.
const (
	nameInputs     = "inputs"
	nameSteps      = "steps"
	nameOutputFile = "output_file"
	nameExportFile = "export_file"
)

var (
	scopeNames = []string{
		"env", "export_file", "func_dir", "inputs", "job", "output_file", "step_dir", "steps", "vars",
		"work_dir",
	}
	stepParts = []string{"exports", "outputs", "status"}
)

// scope has the names that expressions can read in a definition, or in a list of steps in it.
type scope struct {
	spec   *draftSpec
	inputs map[string]bool // of spec
	v0     bool
	files  bool           // output_file and export_file exist
	names  map[string]int // the numbers of the steps of the list, from 1; nil outside of lists
	outer  *scope         // the scope of the step that contains the list
	step   string         // the step that the texts belong to; empty for the definition
	index  int            // of the step in its list; the length of the list for the definition's outputs
}

// in returns the scope for the texts of a step. i is its index in the list.
func (s *scope) in(step string, i int) *scope {
	inner := *s
	inner.step, inner.index = step, i
	return &inner
}

func (s *scope) dialect() pb.Definition_Dialect {
	if s.v0 {
		return pb.Definition_v0
	}
	return pb.Definition_v1
}

// template postpones the check of a text that may have expressions. Errors call it label.
func (c *compiler) template(w word, s *scope, label string) {
	if !w.given && w.text == "" {
		return
	}
	c.later(checkNUL(w))
	if hasExpression(w.text) {
		c.afterwards(func() error {
			t, err := expr.ParseTemplate(w.text)
			return s.check(w, label, 0, t, err)
		})
	}
}

// key checks a key that may have expressions in today's dialect.
func (c *compiler) key(w word, s *scope, label string) {
	switch {
	case !hasExpression(w.text):
	case s.v0:
		c.later(w.at.errorf("%s: a key cannot have an expression in this dialect, that of type", label))
	default:
		c.template(w, s, "a key of "+label)
	}
}

// condition postpones the check of the value of if, and returns the value without brackets.
func (c *compiler) condition(w word, s *scope) string {
	if !w.given {
		return ""
	}
	inner, shift := w.text, 0
	trimmed := strings.TrimSpace(w.text)
	if strings.HasPrefix(trimmed, exprOpen) && strings.HasSuffix(trimmed, "}}") {
		inner = strings.TrimSuffix(strings.TrimPrefix(trimmed, exprOpen), "}}")
		shift = strings.Index(w.text, exprOpen) + len(exprOpen)
	}
	c.afterwards(func() error {
		if strings.TrimSpace(inner) == "" {
			return w.at.errorf(`if is empty; write an expression, such as env.DEPLOY == "yes"`)
		}
		e, err := expr.Parse(inner)
		return s.check(w, "if", shift, e, err)
	})
	return inner
}

// expressions are an [expr.Expr] or an [expr.Template].
type expressions interface{ References() []expr.Reference }

// check checks the names in parsed, the expressions of w, which begin at shift. err is the error of parsing them.
func (s *scope) check(w word, label string, shift int, parsed expressions, err error) error {
	if s.step != "" {
		label = fmt.Sprintf("step %q: %s", s.step, label)
	}
	wrong := func(offset int, why string) error {
		return w.at.errorIn(w.text, min(shift+offset, len(w.text)), "%s: %s", label, why)
	}
	if bad, ok := errors.AsType[*expr.Error](err); ok {
		hint := ""
		if bad.Hint != "" {
			hint = "; " + bad.Hint
		}
		return wrong(bad.Offset, bad.Message+hint)
	}
	if err != nil {
		return wrong(0, err.Error())
	}
	for _, ref := range parsed.References() {
		if why := s.missing(ref.Path); why != "" {
			return wrong(ref.Offset, why)
		}
	}
	return nil
}

// missing returns an error text if path certainly does not exist, and "" otherwise.
func (s *scope) missing(path []string) string {
	switch path[0] {
	case nameInputs:
		return s.missingInput(path)
	case nameSteps:
		return s.missingStep(path)
	case nameOutputFile, nameExportFile:
		if s.files {
			return ""
		}
		return fmt.Sprintf("%s was not found: only an exec or a script has it", path[0])
	}
	if slices.Contains(scopeNames, path[0]) {
		return ""
	}
	return fmt.Sprintf("%s was not found; %s", expr.Abbreviate(path[0]), suggest(path[0], scopeNames, "there are "))
}

func (s *scope) missingInput(path []string) string {
	if len(path) < 2 || s.inputs[path[1]] {
		return ""
	}
	names := paramNames(s.spec.inputs)
	missing := fmt.Sprintf("inputs.%s was not found; ", expr.Abbreviate(path[1]))
	if len(names) == 0 {
		return missing + "the spec has no inputs"
	}
	return missing + suggest(path[1], names, "the spec has ")
}

func (s *scope) missingStep(path []string) string {
	if s.names == nil && s.outer == nil {
		return "steps was not found: a command does not know other steps; pass it their values as inputs"
	}
	if len(path) < 2 {
		return ""
	}
	name := path[1]
	var before []string
	for at := s; at != nil; at = at.outer {
		switch n := at.names[name]; {
		case n > 0 && n <= at.index:
			return missingPart(path)
		case n == at.index+1 && s.step == name:
			return fmt.Sprintf("steps.%s was not found: the step does not know itself", name)
		case n > 0:
			return fmt.Sprintf("steps.%s was not found: the step %q runs later; a step knows only those before it", name, name)
		}
		for other, n := range at.names {
			if n <= at.index {
				before = append(before, other)
			}
		}
	}
	missing := fmt.Sprintf("steps.%s was not found; ", expr.Abbreviate(name))
	if len(before) == 0 {
		return missing + "there is no step before this one"
	}
	slices.Sort(before)
	return missing + suggest(name, before, "the steps before are ")
}

func missingPart(path []string) string {
	if len(path) < 3 || slices.Contains(stepParts, path[2]) {
		return ""
	}
	return fmt.Sprintf("steps.%s.%s was not found; %s", path[1], expr.Abbreviate(path[2]),
		suggest(path[2], stepParts, "a step has "))
}

// suggest returns the end of an error about word: the most similar known word, or else all of them after there.
func suggest(word string, known []string, there string) string {
	if near := spell.Nearest(word, known); near != "" {
		return fmt.Sprintf("did you mean %s?", near)
	}
	if len(known) > maxListed {
		return fmt.Sprintf("%s%s and %d more", there, strings.Join(known[:maxListed], ", "), len(known)-maxListed)
	}
	return there + strings.Join(known, ", ")
}

// maxListed bounds the names that an error lists.
const maxListed = 20
