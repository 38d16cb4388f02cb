package action

import (
	"fmt"
	"math"
	"strings"

	"github.com/stepmux/stepmux/remote/step/action/expression"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// knownNames returns the names in the expressions of steps: those of the scope of a list. A composite action does not
// have secrets and vars.
func knownNames(isWorkflow bool) expression.Scope {
	known := expression.Scope{
		Values:    map[string]expression.Value{},
		Functions: map[string]expression.Function{"hashfiles": {Min: 1, Max: 255}},
	}
	names := "env github inputs job matrix needs runner steps strategy"
	if isWorkflow {
		names += " secrets vars"
	}
	for _, name := range strings.Fields(names) {
		known.Values[name] = expression.Value{}
	}
	for _, name := range strings.Fields("always cancelled failure success") {
		known.Functions[name] = expression.Function{}
	}
	return known
}

// jobIfNames returns the names in the if of a job, where success and failure may name jobs.
func jobIfNames() expression.Scope {
	known := knownNames(true)
	for _, name := range []string{"success", "failure"} {
		known.Functions[name] = expression.Function{Max: math.MaxInt}
	}
	return known
}

// check finds the mistakes in the expressions of a step that would fail it when its turn comes.
func (s *step) check(r *reader, isWorkflow bool) {
	known := knownNames(isWorkflow)
	r.expressions(known, "", []setting{
		condition(s.condition, s.conditionLine),
		{"run", s.run, s.line},
		{"shell", s.shell, s.line},
		{"working-directory", s.dir, s.line},
		{"continue-on-error", s.mayFail, s.line},
		{"timeout-minutes", s.timeout, s.line},
	})
	r.expressions(known, "with ", s.with)
	r.expressions(known, "env ", s.env)
}

// condition returns an if as a text for expressions.
func condition(text string, line int) setting {
	if text = bare(text); !strings.Contains(text, "${{") {
		text = "${{" + text + "}}"
	}
	return setting{"if", text, line}
}

// expressions finds the mistakes in the expressions of texts. Errors call each by its name after label.
func (r *reader) expressions(known expression.Scope, label string, list []setting) {
	for _, e := range list {
		if err := expression.Check(e.text, known); err != nil && r.Err == nil {
			r.Err = &lang.Error{
				Where: fmt.Sprintf("%s:%d", r.Text.Name, e.line), Line: e.line,
				Message: fmt.Sprintf("%s: %v", strings.TrimSpace(label+e.name), err),
			}
		}
	}
}
