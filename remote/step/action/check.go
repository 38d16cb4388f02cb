package action

import (
	"fmt"
	"strings"

	"github.com/stepmux/stepmux/remote/step/action/expression"
	"github.com/stepmux/stepmux/remote/step/lang"
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
	condition := bare(s.condition)
	if !strings.Contains(condition, "${{") {
		condition = "${{" + condition + "}}"
	}
	r.expressions("", []setting{
		{"if", condition, s.conditionLine},
		{"run", s.run, s.line},
		{"shell", s.shell, s.line},
		{"working-directory", s.dir, s.line},
		{"continue-on-error", s.mayFail, s.line},
		{"timeout-minutes", s.timeout, s.line},
	})
	r.expressions("with ", s.with)
	r.expressions("env ", s.env)
}

// expressions finds the mistakes in the expressions of texts. Errors call each by its name after label.
func (r *reader) expressions(label string, list []setting) {
	known := knownNames()
	for _, e := range list {
		if err := expression.Check(e.text, known); err != nil && r.err == nil {
			r.err = &lang.Error{
				Where: fmt.Sprintf("%s:%d", r.name, e.line), Line: e.line,
				Message: fmt.Sprintf("%s%s: %v", label, e.name, err),
			}
		}
	}
}
