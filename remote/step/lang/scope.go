package lang

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/internal/spell"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/expr"
)

// The names that expressions know.
const (
	nameEnv        = "env"
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

// scope has the names that the expressions of a definition, or of a list of steps in it, know.
type scope struct {
	spec  *draftSpec
	v0    bool
	files bool           // output_file and export_file exist
	names map[string]int // the numbers of the steps of the list, from 1; nil outside of lists
	outer *scope         // the scope of the list around this one
	index int            // of this list in outer
	step  string         // the step that the texts belong to; empty for the definition
}

// in returns the scope for the texts of a step.
func (s *scope) in(step string) *scope {
	inner := *s
	inner.step = step
	return &inner
}

func (s *scope) dialect() pb.Definition_Dialect {
	if s.v0 {
		return pb.Definition_v0
	}
	return pb.Definition_v1
}

// template postpones the check of a text that may have expressions. The text belongs to the step with the index i of
// its list; errors call it label.
func (c *compiler) template(w word, s *scope, i int, label string) error {
	if !w.given && w.text == "" {
		return nil
	}
	c.later(checkNUL(w))
	if hasExpression(w.text) {
		c.afterwards(func() error {
			t, err := expr.ParseTemplate(w.text)
			if err != nil {
				return s.exprError(w, label, 0, err)
			}
			return s.check(w, label, 0, t.References(), i)
		})
	}
	return nil
}

// key checks a key that may have expressions in today's dialect.
func (c *compiler) key(w word, s *scope, i int, label string) error {
	if !hasExpression(w.text) {
		return nil
	}
	if s.v0 {
		c.afterwards(func() error {
			return w.at.beyond().errorf("%s: a key cannot have an expression in this dialect, that of type", label)
		})
		return nil
	}
	return c.template(w, s, i, "a key of "+label)
}

// condition postpones the check of the value of if, and returns the value without brackets.
func (c *compiler) condition(w word, s *scope, i int) string {
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
			return w.at.beyond().errorf(`if is empty; write an expression, such as env.DEPLOY == "yes"`)
		}
		e, err := expr.Parse(inner)
		if err != nil {
			return s.exprError(w, "if", shift, err)
		}
		return s.check(w, "if", shift, e.References(), i)
	})
	return inner
}

// exprError returns an error of the expression that begins at shift of w.
func (s *scope) exprError(w word, label string, shift int, err error) error {
	offset, message := 0, err.Error()
	if bad, ok := errors.AsType[*expr.Error](err); ok {
		offset, message = bad.Offset, bad.Message
		if bad.Hint != "" {
			message += "; " + bad.Hint
		}
	}
	return s.errorIn(w, shift+offset, label, message)
}

func (s *scope) errorIn(w word, offset int, label, message string) error {
	if s.step != "" {
		label = fmt.Sprintf("step %q: %s", s.step, label)
	}
	return semantic(w.at.errorIn(w.text, min(offset, len(w.text)), "%s: %s", label, message))
}

// check checks the names that the expressions of w use.
func (s *scope) check(w word, label string, shift int, refs []expr.Reference, i int) error {
	for _, ref := range refs {
		if why := s.missing(ref.Path, i); why != "" {
			return s.errorIn(w, shift+ref.Offset, label, why)
		}
	}
	return nil
}

// missing returns an error text if path is known not to exist, or "".
func (s *scope) missing(path []string, i int) string {
	switch path[0] {
	case nameInputs:
		return s.missingInput(path)
	case nameSteps:
		return s.missingStep(path, i)
	case nameOutputFile, nameExportFile:
		if s.files {
			return ""
		}
		return fmt.Sprintf("%s was not found: only an exec or a script has it", path[0])
	}
	if slices.Contains(scopeNames, path[0]) {
		return ""
	}
	return fmt.Sprintf("%s was not found; %s", abbreviate(path[0]), suggest(path[0], scopeNames, "there are "))
}

func (s *scope) missingInput(path []string) string {
	if len(path) < 2 {
		return ""
	}
	var names []string
	if s.spec != nil {
		for _, in := range s.spec.inputs {
			names = append(names, in.name.text)
		}
	}
	if slices.Contains(names, path[1]) {
		return ""
	}
	missing := fmt.Sprintf("inputs.%s was not found; ", abbreviate(path[1]))
	if len(names) == 0 {
		return missing + "the spec has no inputs"
	}
	return missing + suggest(path[1], names, "the spec has ")
}

func (s *scope) missingStep(path []string, i int) string {
	if s.names == nil && s.outer == nil {
		return "steps was not found: a command does not know other steps; pass it their values as inputs"
	}
	if len(path) < 2 {
		return ""
	}
	name := path[1]
	var before []string
	for at, index := s, i; at != nil; at, index = at.outer, at.index {
		switch n := at.names[name]; {
		case n > 0 && n <= index:
			return missingPart(path)
		case n == index+1 && s.step == name:
			return fmt.Sprintf("steps.%s was not found: the step does not know itself", name)
		case n > 0:
			return fmt.Sprintf("steps.%s was not found: the step %q runs later; a step knows only those before it", name, name)
		}
		for other, n := range at.names {
			if n <= index {
				before = append(before, other)
			}
		}
	}
	missing := fmt.Sprintf("steps.%s was not found; ", abbreviate(name))
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
	return fmt.Sprintf("steps.%s.%s was not found; %s", path[1], abbreviate(path[2]),
		suggest(path[2], stepParts, "a step has "))
}

// suggest returns the end of an error about word: the most likely word of known, or else all of them after there.
func suggest(word string, known []string, there string) string {
	if near := spell.Nearest(word, known); near != "" {
		return fmt.Sprintf("did you mean %s?", near)
	}
	if len(known) > maxListed {
		return fmt.Sprintf("%s%s and %d more", there, strings.Join(known[:maxListed], ", "), len(known)-maxListed)
	}
	return there + strings.Join(known, ", ")
}

// maxListed is the largest number of names that an error lists.
const maxListed = 20

func abbreviate(word string) string {
	if len(word) <= maxQuoted {
		return word
	}
	return strings.ToValidUTF8(word[:maxQuoted], "") + "..."
}

func sortedKeys[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }
