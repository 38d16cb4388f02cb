package action

import (
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

// setting is a text with a name.
type setting struct {
	name, text string
	line       int
}
