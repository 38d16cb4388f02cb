package action

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"

	"github.com/stepmux/stepmux/remote/step/action/expression"
)

const (
	// maxText bounds an action.yml or a workflow, in bytes.
	maxText = 1 << 20
	// maxNodes bounds the values that are read, and maxBytes their texts. Each use of an alias counts.
	maxNodes, maxBytes = 200_000, 4 * maxText
	// maxLevels bounds the nesting.
	maxLevels = 64
)

// reader reads a YAML text. It keeps its first error, and returns zero values from then on.
type reader struct {
	name         string
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
	switch {
	case len(text) > maxText:
		r.err = fmt.Errorf("%s: the text has more than %d bytes", r.name, maxText)
		return nil
	case !utf8.Valid(text):
		r.err = fmt.Errorf("%s: the text is not valid UTF-8", r.name)
		return nil
	}
	loader, err := yaml.NewLoader(strings.NewReader(string(text)),
		yaml.WithPlugin(loaderlimits.New(loaderlimits.DepthValue(maxLevels))))
	doc := new(yaml.Node)
	if err == nil {
		err = loader.Load(doc)
	}
	switch {
	case errors.Is(err, io.EOF) || err == nil && (doc.Kind != yaml.DocumentNode || len(doc.Content) != 1):
		r.err = fmt.Errorf("%s: the text is empty", r.name)
		return nil
	case err != nil:
		r.err = fmt.Errorf("%s: not valid YAML: %.400s", r.name, strings.ReplaceAll(err.Error(), "\n", " "))
		return nil
	}
	return doc.Content[0]
}

func (r *reader) fail(n *yaml.Node, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%s:%d:%d: %s", r.name, n.Line, n.Column, fmt.Sprintf(format, args...))
	}
}

// follow returns n or, if n is an alias, its value.
func (r *reader) follow(n *yaml.Node) *yaml.Node {
	for i := 0; n.Kind == yaml.AliasNode && i < maxLevels; i++ {
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
