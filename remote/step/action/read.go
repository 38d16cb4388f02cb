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

// maxNodes bounds the values that are read, and maxBytes their texts. Each use of an alias counts.
const maxNodes, maxBytes = 200_000, 4 * lang.MaxText

// reader reads a YAML text. It keeps its first error, and returns zero values from then on.
type reader struct {
	name         string
	src          *lang.Source
	nodes, bytes int
	err          error
}

// pair is an entry of a mapping.
type pair struct {
	key   string
	at    *yaml.Node
	value *yaml.Node
}

// load returns the value of the only document.
func (r *reader) load(text []byte) *yaml.Node {
	if r.src, r.err = lang.Load(r.name, text); r.err != nil {
		return nil
	}
	if len(r.src.Docs) == 0 {
		r.err = r.src.Errorf(nil, "the text is empty")
		return nil
	}
	if len(r.src.Docs) > 1 {
		r.fail(r.src.Docs[1], "this is a second document; GitHub refuses a file that has two")
	}
	return r.src.Docs[0]
}

func (r *reader) fail(n *yaml.Node, format string, args ...any) {
	if r.err == nil {
		r.err = r.src.Errorf(n, format, args...)
	}
}

// follow returns n or, if n is an alias, its value.
func (r *reader) follow(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	r.nodes++
	if r.bytes += len(n.Value); r.nodes > maxNodes || r.bytes > maxBytes {
		r.fail(n, "the text has more than %d values or %d bytes, each use of an alias included", maxNodes, maxBytes)
	}
	return n
}

// pairs returns the entries of a mapping. A missing value has no entries. Errors call it label.
func (r *reader) pairs(n *yaml.Node, label string) []pair {
	if n == nil || r.err != nil {
		return nil
	}
	n = r.follow(n)
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		r.fail(n, "%s must be a mapping", label)
		return nil
	}
	list := make([]pair, 0, len(n.Content)/2)
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Kind != yaml.ScalarNode {
			r.fail(key, "a key of %s is not a text", label)
			return nil
		}
		if seen[key.Value] {
			r.fail(key, "the key %.64q is there twice", key.Value)
			return nil
		}
		seen[key.Value] = true
		r.bytes += len(key.Value)
		list = append(list, pair{key.Value, key, n.Content[i+1]})
	}
	return list
}

// items returns the items of a list.
func (r *reader) items(n *yaml.Node, label string) []*yaml.Node {
	if n == nil || r.err != nil {
		return nil
	}
	n = r.follow(n)
	if n.Kind != yaml.SequenceNode {
		r.fail(n, "%s must be a list", label)
		return nil
	}
	return n.Content
}

// text returns a scalar as GitHub converts it to a text: numbers in their shortest form.
func (r *reader) text(n *yaml.Node, label string) string {
	if r.err != nil {
		return ""
	}
	n = r.follow(n)
	if n.Kind != yaml.ScalarNode {
		r.fail(n, "%s must be a text", label)
		return ""
	}
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
		r.fail(n, "%s has a NUL byte", label)
	}
	return n.Value
}

// texts returns a mapping of texts, in its order.
func (r *reader) texts(n *yaml.Node, label string) []setting {
	var list []setting
	for _, p := range r.pairs(n, label) {
		list = append(list, setting{p.key, r.text(p.value, label+" "+strconv.Quote(p.key)), p.value.Line})
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
		r.fail(n, "%s has an entry without a name", label)
	}
	return list
}

// single returns the text of n, if that is a single expression.
func (r *reader) single(n *yaml.Node, label string) (text string, ok bool) {
	if n == nil || r.err != nil {
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
