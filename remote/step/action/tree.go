package action

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/remote/step/action/expression"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// tree is a value of a workflow. Its texts may have expressions.
type tree struct {
	kind         yaml.Kind
	line, column int
	text         string           // of a scalar that has expressions
	value        expression.Value // of another scalar
	keys         []string         // of a mapping
	below        []*tree          // the values of a mapping, or the items of a list
}

// tree reads a value. Its expressions may have the names in known.
func (r *reader) tree(n *yaml.Node, label string, known expression.Scope) *tree {
	r.Enter(n)
	defer r.Leave()
	v := r.Value(n)
	t := &tree{kind: v.Kind, line: n.Line, column: n.Column}
	switch {
	case r.Err != nil:
	case v.Kind == yaml.MappingNode:
		for _, p := range r.Mapping(n, label) {
			t.keys, t.below = append(t.keys, p.Key), append(t.below, r.tree(p.Value, p.Key, known))
		}
	case v.Kind == yaml.SequenceNode:
		for _, item := range r.List(n, label) {
			t.below = append(t.below, r.tree(item, "an item of "+label, known))
		}
	default:
		r.scalar(t, v, label, known)
	}
	return t
}

// scalar reads a scalar into t. As on GitHub it has the kind that its form in YAML has.
func (r *reader) scalar(t *tree, v *yaml.Node, label string, known expression.Scope) {
	text := r.text(v, label)
	if strings.Contains(text, "${{") {
		t.text = text
		if err := expression.Check(text, known); err != nil {
			r.Failf(v, "%s: %v", label, err)
		}
		r.mention(label, text, t.line, known)
		return
	}
	t.value = expression.String(text)
	switch v.ShortTag() {
	case "!!null":
		t.value = expression.Value{}
	case "!!bool":
		t.value = expression.Boolean(text == "true")
	case "!!int", "!!float":
		if n, err := expression.Evaluate(text, expression.Scope{}); err == nil && n.Kind() == "Number" {
			t.value = n
		}
	}
}

// at returns the value of a key, or nil.
func (t *tree) at(key string) *tree {
	if t == nil {
		return nil
	}
	if i := slices.Index(t.keys, key); i >= 0 {
		return t.below[i]
	}
	return nil
}

// isLiteral reports whether t has no expressions.
func (t *tree) isLiteral() bool {
	return t.text == "" && !slices.ContainsFunc(t.below, func(b *tree) bool { return !b.isLiteral() })
}

// uses reports whether an expression in t has the context name.
func (t *tree) uses(name string, known expression.Scope) bool {
	if t == nil {
		return false
	}
	if t.text != "" && len(expression.Paths(t.text, known, name)) > 0 {
		return true
	}
	return slices.ContainsFunc(t.below, func(b *tree) bool { return b.uses(name, known) })
}

// evaluator evaluates trees of a file.
type evaluator struct {
	file  string
	scope expression.Scope
	size  int // of the values so far, in bytes
}

// maxEvaluated bounds the values of the trees of a job, in bytes.
const maxEvaluated = 16 << 20

// errorf returns an error about t.
func (e *evaluator) errorf(t *tree, format string, args ...any) error {
	return &lang.Error{
		Where: fmt.Sprintf("%s:%d:%d", e.file, t.line, t.column), Line: t.line, Column: t.column,
		Message: fmt.Sprintf(format, args...),
	}
}

// value returns the value of t, which is null if t is nil.
func (e *evaluator) value(t *tree, label string) (v expression.Value, err error) {
	switch {
	case t == nil:
		return v, nil
	case t.kind == yaml.MappingNode:
		values := make(map[string]expression.Value, len(t.keys))
		for i, key := range t.keys {
			if values[key], err = e.value(t.below[i], key); err != nil {
				return v, err
			}
		}
		return expression.Ordered(t.keys, values), nil
	case t.kind == yaml.SequenceNode:
		items := make([]expression.Value, len(t.below))
		for i, item := range t.below {
			if items[i], err = e.value(item, "an item of "+label); err != nil {
				return v, err
			}
		}
		return expression.Array(items...), nil
	case t.text == "":
		return t.value, nil
	}
	if v, err = expression.Template(t.text, e.scope); err != nil {
		return v, e.errorf(t, "%s: %v", label, err)
	}
	if e.size += v.Size(); e.size > maxEvaluated {
		return v, e.errorf(t, "%s: the expressions of the job compute more than %d MiB", label, maxEvaluated>>20)
	}
	return v, nil
}

// boolean returns the value of t, or otherwise if it is null.
func (e *evaluator) boolean(t *tree, label string, otherwise bool) (bool, error) {
	v, err := e.value(t, label)
	switch {
	case err != nil:
		return false, err
	case v.Kind() == "Null":
		return otherwise, nil
	case v.Text() == "true" || v.Text() == "false":
		return v.Text() == "true", nil
	}
	return false, e.errorf(t, "%s is true or false, not %s", label, described(v))
}

// number returns the value of t, or otherwise if it is null. The error calls a number that is not above zero wrong.
func (e *evaluator) number(t *tree, label string, otherwise float64) (float64, error) {
	v, err := e.value(t, label)
	if err != nil {
		return 0, err
	}
	if v.Kind() == "Null" {
		return otherwise, nil
	}
	f, err := strconv.ParseFloat(v.Text(), 64)
	if err != nil || !(f > 0 && f <= 1e9) || v.Kind() == "Boolean" { // not a NaN either
		return 0, e.errorf(t, "%s is a number above 0, not %s", label, described(v))
	}
	return f, nil
}

// described describes a value in an error. It does not quote texts, which may be secret.
func described(v expression.Value) string {
	switch v.Kind() {
	case "Number", "Boolean":
		return v.Text()
	case "Null":
		return "nothing"
	case "String":
		return "a text"
	case "Array":
		return "a list"
	default:
		return "a mapping"
	}
}
