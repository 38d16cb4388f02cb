package action

import (
	"fmt"
	"strings"

	"github.com/stepmux/stepmux/remote/step/action/expression"
)

// known are the names in the expressions of a workflow's steps: those of the scope of a list.
var known = expression.Scope{
	Values: map[string]expression.Value{
		"env": {}, "github": {}, "inputs": {}, "job": {}, "matrix": {}, "needs": {}, "runner": {}, "secrets": {}, "steps": {},
		"strategy": {}, "vars": {},
	},
	Functions: map[string]expression.Function{
		"always": {}, "cancelled": {}, "failure": {}, "hashfiles": {Min: 1, Max: 255}, "success": {},
	},
}

// check finds the mistakes in the expressions of a workflow's step that would fail it when its turn comes.
func (s *step) check(r *reader) {
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
		{"run", s.run, s.line}, {"shell", s.shell, s.line}, {"working-directory", s.dir, s.line},
		{"continue-on-error", s.mayFail, s.line}, {"timeout-minutes", s.timeout, s.line},
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
