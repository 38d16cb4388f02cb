package action

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/yamltree"
	"github.com/stepmux/stepmux/remote/step/action/expression"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// reader reads a YAML text.
type reader struct {
	yamltree.Reader
	mentions []mention // of a workflow's job
}

// rules are those of GitHub: a number, a date and nothing may stand for a text, and tags have no effect.
var rules = yamltree.Rules{
	MaxCost: 4 * lang.MaxText, Unquoted: true, Nulls: true, PlainMerge: true,
	Tag: func(*yaml.Node) bool { return true },
}

// load returns the value of the only document of a text. Errors call it name.
func load(name string, text []byte) (r *reader, root *yaml.Node) {
	src, err := lang.Load(name, text)
	r = &reader{Reader: yamltree.Reader{Text: src, Rules: rules}}
	r.Fail(err)
	if len(src.Docs) == 0 {
		r.Failf(nil, "the text is empty")
		return r, &yaml.Node{}
	}
	if len(src.Docs) > 1 {
		r.Failf(src.Docs[1], "this is a second document; GitHub refuses a file that has two")
	}
	return r, src.Docs[0]
}

// text returns a scalar as GitHub converts it to a text: numbers in their shortest form.
func (r *reader) text(n *yaml.Node, label string) string {
	n = r.Scalar(n, label)
	switch n.ShortTag() {
	case "!!null":
		return ""
	case "!!bool":
		return strings.ToLower(n.Value)
	case "!!int", "!!float":
		if v, err := expression.Evaluate(n.Value, expression.Scope{}); err == nil && v.Kind() == "Number" {
			return v.Text()
		}
	}
	if strings.ContainsRune(n.Value, 0) {
		r.Failf(n, "%s has a NUL byte", label)
	}
	return n.Value
}

// texts returns a mapping of texts, in its order.
func (r *reader) texts(n *yaml.Node, label string) []setting {
	var list []setting
	for _, p := range r.Mapping(n, label) {
		list = append(list, setting{p.Key, r.text(p.Value, label+" "+strconv.Quote(p.Key)), p.Value.Line})
	}
	return list
}

// settings is texts for a mapping in whose place GitHub also takes an expression, which gives all its entries. That is
// a setting without a name.
func (r *reader) settings(n *yaml.Node, label string) []setting {
	if text, ok := r.single(n, label); ok {
		return []setting{{"", text, n.Line}}
	}
	list := r.texts(n, label)
	if slices.ContainsFunc(list, func(s setting) bool { return s.name == "" }) {
		r.Failf(n, "%s has an entry without a name", label)
	}
	return list
}

// single returns the text of n, if that is a single expression.
func (r *reader) single(n *yaml.Node, label string) (text string, ok bool) {
	if n == nil || r.Err != nil {
		return "", false
	}
	v := n
	if n.Kind == yaml.AliasNode {
		v = n.Alias
	}
	if v.Kind != yaml.ScalarNode || !expression.IsSingle(v.Value) {
		return "", false
	}
	return r.text(n, label), true
}

// setting is a text with a name. Without a name it is an expression that gives a mapping of texts.
type setting struct {
	name, text string
	line       int
}

// label returns the name of s for errors about an entry of a mapping.
func (s setting) label(of string) string { return strings.TrimSpace(of + " " + s.name) }

// evaluated returns the entries that s, an entry of the mapping called label, has after its evaluation to v.
func (s setting) evaluated(v expression.Value, label string) (list []setting, err error) {
	if s.name != "" {
		return []setting{{s.name, v.Text(), s.line}}, nil
	}
	if kind := v.Kind(); kind != "Object" && kind != "Null" {
		return nil, fmt.Errorf("%s must be a mapping, and the value of its expression is of the kind %s", label, kind)
	}
	for name, value := range v.Properties() {
		if kind := value.Kind(); name == "" || kind == "Array" || kind == "Object" {
			return nil, fmt.Errorf("%s must be a mapping of texts, and the value of its expression is not: %.64q is of the "+
				"kind %s", label, name, kind)
		}
		list = append(list, setting{name, value.Text(), s.line})
	}
	return list, nil
}
