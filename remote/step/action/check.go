package action

import (
	"fmt"
	"strings"

	"github.com/stepmux/stepmux/remote/step/action/expression"
)

// knownNames returns the names in the expressions of a workflow's steps: those of the scope of a list.
func knownNames() expression.Scope {
	known := expression.Scope{
		Values:    map[string]expression.Value{},
		Functions: map[string]expression.Function{"hashfiles": {Min: 1, Max: 255}},
	}
	for _, name := range strings.Fields("env github inputs job matrix needs runner secrets steps strategy vars") {
		known.Values[name] = expression.Value{}
	}
	for _, name := range strings.Fields("always cancelled failure success") {
		known.Functions[name] = expression.Function{}
	}
	return known
}

// check finds the mistakes in the expressions of a workflow's step that would fail it when its turn comes.
func (s *step) check(r *reader) {
	known := knownNames()
	tell := func(line int, label string, err error) {
		if err != nil && r.err == nil {
			r.err = fmt.Errorf("%s:%d: %s: %w", r.name, line, label, err)
		}
	}
	if condition := bare(s.condition); strings.Contains(condition, "${{") {
		tell(s.conditionLine, "if", expression.Check(condition, known))
	} else {
		_, err := expression.Parse(condition, known)
		tell(s.conditionLine, "if", err)
	}
	for _, t := range []setting{
		{"run", s.run, s.line},
		{"shell", s.shell, s.line},
		{"working-directory", s.dir, s.line},
		{"continue-on-error", s.mayFail, s.line},
		{"timeout-minutes", s.timeout, s.line},
	} {
		tell(t.line, t.name, expression.Check(t.text, known))
	}
	for _, e := range s.with {
		tell(e.line, "with "+e.name, expression.Check(e.text, known))
	}
	for _, e := range s.env {
		tell(e.line, "env "+e.name, expression.Check(e.text, known))
	}
}
