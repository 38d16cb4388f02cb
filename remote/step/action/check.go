package action

import (
	"fmt"
	"math"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/remote/step/action/expression"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// knownNames returns the names in the expressions of steps: those of the scope of a list. A composite action does not
// have secrets and vars.
func knownNames(isWorkflow bool) expression.Scope {
	known := expression.Scope{
		Functions: map[string]expression.Function{"hashfiles": {Min: 1, Max: 255}},
	}
	names := "env github inputs job matrix needs runner steps strategy"
	if isWorkflow {
		names += " secrets vars"
	}
	known.Values = contexts(names).Values
	for _, name := range strings.Fields("always cancelled failure success") {
		known.Functions[name] = expression.Function{}
	}
	return known
}

// contexts returns the contexts with these names.
func contexts(names string) expression.Scope {
	known := expression.Scope{Values: map[string]expression.Value{}}
	for _, name := range strings.Fields(names) {
		known.Values[name] = expression.Value{}
	}
	return known
}

// The contexts that GitHub gives to the if and the strategy of a job, and to the keys that are read when a build of the
// job starts.
const (
	groupContexts = "github inputs vars"
	ifContexts    = "github inputs needs vars"
	startContexts = "github inputs matrix needs strategy vars"
)

// jobIfNames returns the names in the if of a job, where success and failure may name jobs.
func jobIfNames() expression.Scope {
	known := contexts(ifContexts)
	known.Functions = map[string]expression.Function{
		"success": {Max: math.MaxInt}, "failure": {Max: math.MaxInt}, "always": {}, "cancelled": {},
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

// condition reads the if of a job.
func (r *reader) condition(n *yaml.Node) setting {
	s := setting{"if", r.text(n, "if"), n.Line}
	text := condition(s.text, s.line).text
	r.mention(s.name, text, s.line, jobIfNames())
	if err := expression.Check(text, jobIfNames()); err != nil {
		r.Failf(n, "if: %v", err)
	}
	return s
}

// condition returns an if as a text for expressions.
func condition(text string, line int) setting {
	if text = bare(text); !strings.Contains(text, "${{") {
		text = "${{" + text + "}}"
	}
	return setting{"if", text, line}
}

// mention is a path below needs in an expression.
type mention struct {
	label string
	line  int
	path  []string
}

// mention keeps the paths below needs in a text, for [Workflow].
func (r *reader) mention(label, text string, line int, known expression.Scope) {
	if _, there := known.Values["needs"]; !there || !strings.Contains(strings.ToLower(text), "needs") {
		return
	}
	for _, path := range expression.Paths(text, known, "needs") {
		r.mentions = append(r.mentions, mention{label, line, path})
	}
}

// expressions finds the mistakes in the expressions of texts. Errors call each by its name after label.
func (r *reader) expressions(known expression.Scope, label string, list []setting) {
	for _, e := range list {
		r.mention(strings.TrimSpace(label+e.name), e.text, e.line, known)
		if err := expression.Check(e.text, known); err != nil && r.Err == nil {
			r.Err = &lang.Error{
				Where: fmt.Sprintf("%s:%d", r.Text.Name, e.line), Line: e.line,
				Message: fmt.Sprintf("%s: %v", strings.TrimSpace(label+e.name), err),
			}
		}
	}
}
