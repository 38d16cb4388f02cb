package gitlabci

import (
	"iter"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/remote/step/lang"
)

const (
	// maxDepth bounds the nesting, including aliases.
	maxDepth = 64
	// maxCost bounds the sum of all nodes and their copies. It is enough for about half a million nodes.
	maxCost = 32 << 20
	// nodeCost is the cost of a node without its text, entryCost that of its place in a list.
	nodeCost, entryCost = 64, 8
)

// tree makes copies of nodes, without aliases and merge keys. It records the text that each node comes from, and counts
// the cost. It keeps the first mistake. From then on its nodes are empty, so its methods need no error results.
type tree struct {
	err    error // the first mistake
	main   *lang.Source
	others map[*yaml.Node]*lang.Source // for nodes that do not come from main
	cost   int
}

// origin returns the text that n, or the original of n, comes from.
func (t *tree) origin(n *yaml.Node) *lang.Source {
	if src := t.others[n]; src != nil {
		return src
	}
	return t.main
}

// fail keeps err, if it is the first mistake, and returns an empty node.
func (t *tree) fail(err error) *yaml.Node {
	if t.err == nil {
		t.err = err
	}
	return &yaml.Node{}
}

// failf calls fail with an error about n.
func (t *tree) failf(n *yaml.Node, format string, args ...any) *yaml.Node {
	return t.fail(t.origin(n).Errorf(n, format, args...))
}

// spend counts a copy of n. After a mistake it returns false: then no more may be copied.
func (t *tree) spend(n *yaml.Node) bool {
	if t.cost += nodeCost + len(n.Value) + entryCost*len(n.Content); t.cost > maxCost {
		t.failf(n, "aliases, extends and references make this file too large; write it shorter")
	}
	return t.err == nil
}

// copyOf returns a copy of n without its content.
func (t *tree) copyOf(n *yaml.Node) *yaml.Node {
	c := &yaml.Node{Kind: n.Kind, Style: n.Style, Tag: n.Tag, Value: n.Value, Line: n.Line, Column: n.Column}
	if src := t.others[n]; src != nil {
		t.others[c] = src
	}
	return c
}

// made returns a new node with the place of n.
func (t *tree) made(n *yaml.Node, kind yaml.Kind, content ...*yaml.Node) *yaml.Node {
	c := t.copyOf(n)
	c.Kind, c.Style, c.Tag, c.Value, c.Content = kind, 0, "", "", content
	return c
}

// text returns a text with the place of n.
func (t *tree) text(n *yaml.Node, value string) *yaml.Node {
	c := t.made(n, yaml.ScalarNode)
	c.Style, c.Tag, c.Value = yaml.DoubleQuotedStyle, "!!str", value
	return c
}

// expand returns a copy of n, a node of src.
func (t *tree) expand(src *lang.Source, n *yaml.Node, depth int) *yaml.Node {
	if depth > maxDepth {
		return t.fail(src.Errorf(n, "it is nested deeper than %d; does an alias hold itself?", maxDepth))
	}
	v := n
	if n.Kind == yaml.AliasNode {
		if v = n.Alias; v == nil || v.Kind == yaml.AliasNode {
			return t.fail(src.Errorf(n, "the alias has no anchor"))
		}
	}
	if src != t.main {
		t.others[v] = src
	}
	if !t.spend(v) {
		return &yaml.Node{}
	}
	if v.Style&yaml.TaggedStyle != 0 && v.ShortTag() != "!!str" && !isReference(v) {
		return t.failf(v, "this tag is not supported; the only tag is !reference")
	}
	c := t.copyOf(v)
	if v.Kind == yaml.MappingNode {
		t.expandMapping(src, v, c, depth)
		return c
	}
	for _, item := range v.Content {
		c.Content = append(c.Content, t.expand(src, item, depth+1))
	}
	return c
}

// expandMapping adds the keys of the mapping v to c. As in GitLab, whose server is written in Ruby, the keys of a merge
// key replace those before it, and those after it replace them. Of a list of mappings the first one takes precedence.
func (t *tree) expandMapping(src *lang.Source, v, c *yaml.Node, depth int) {
	given, at := map[string]bool{}, map[string]int{}
	set := func(key, value *yaml.Node) {
		i, there := at[key.Value]
		if !there {
			i = len(c.Content)
			at[key.Value] = i
			c.Content = append(c.Content, key, value)
		}
		c.Content[i], c.Content[i+1] = key, value
	}
	for key, value := range entries(v) {
		e := t.expand(src, value, depth+1)
		if key.ShortTag() == "!!merge" {
			for _, s := range slices.Backward(itemsOf(e)) {
				if s.Kind != yaml.MappingNode {
					t.failf(s, "<< takes a mapping, or a list of them")
				}
				for key, value := range entries(s) {
					set(key, value)
				}
			}
			continue
		}
		k := t.expand(src, key, depth+1)
		switch {
		case k.Kind != yaml.ScalarNode:
			t.failf(k, "a key must be a text")
		case given[k.Value]:
			t.failf(k, "the key%s is given twice", lang.Quote(k.Value))
		}
		given[k.Value] = true
		set(k, e)
	}
}

// itemsOf returns the items of the list n. If n is not a list, it returns n alone.
func itemsOf(n *yaml.Node) []*yaml.Node {
	if n.Kind == yaml.SequenceNode {
		return n.Content
	}
	return []*yaml.Node{n}
}

// maxNested bounds the nesting of lists in lists.
const maxNested = 10

// flat returns the items of n as itemsOf does. In the place of a list in n, which comes from a reference, it has the
// items of that. depth is the nesting of n. Errors call n label.
func (t *tree) flat(label string, n *yaml.Node, depth int) (all []*yaml.Node) {
	if depth > maxNested {
		t.failf(n, "%s is nested deeper than %d", label, maxNested)
		return nil
	}
	for _, item := range itemsOf(n) {
		if item.Kind == yaml.SequenceNode {
			all = append(all, t.flat(label, item, depth+1)...)
		} else {
			all = append(all, item)
		}
	}
	return all
}

// entries yields the keys and values of the mapping n, which may be missing.
func entries(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		if n == nil {
			return
		}
		for pair := range slices.Chunk(n.Content, 2) {
			if len(pair) < 2 || !yield(pair[0], pair[1]) {
				return
			}
		}
	}
}

// find returns the value of a key of the mapping n, or nil.
func find(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for k, value := range entries(n) {
		if k.Value == key {
			return value
		}
	}
	return nil
}

// checkKeys checks that all keys of the mapping n are known. Errors call n label. The hint is for a key that is like no
// other. If it is empty, a short list of the keys takes its place.
func (t *tree) checkKeys(n *yaml.Node, label string, known []string, hint string) {
	if hint == "" && len(known) <= maxListed {
		hint = "; it has " + strings.Join(known, ", ")
	}
	for key := range entries(n) {
		if !slices.Contains(known, key.Value) {
			t.failf(key, "unknown key%s of %s%s", lang.Quote(key.Value), label, lang.Suggest(key.Value, known, hint))
		}
	}
}

// findKey returns the node of a key of the mapping n, or nil.
func findKey(n *yaml.Node, key string) *yaml.Node {
	for k := range entries(n) {
		if k.Value == key {
			return k
		}
	}
	return nil
}

// merge returns base overridden by over: mappings key by key, all other values as a whole. It changes neither.
func (t *tree) merge(base, over *yaml.Node) *yaml.Node {
	if base == nil || base.Kind != yaml.MappingNode || over.Kind != yaml.MappingNode {
		return over
	}
	result := t.copyOf(over)
	result.Content = slices.Clone(base.Content)
	at := make(map[string]int, len(base.Content)/2)
	for i := 0; i+1 < len(base.Content); i += 2 {
		at[base.Content[i].Value] = i
	}
	for key, value := range entries(over) {
		j, both := at[key.Value]
		if !both {
			result.Content = append(result.Content, key, value)
			continue
		}
		result.Content[j], result.Content[j+1] = key, t.merge(result.Content[j+1], value)
	}
	t.spend(result)
	return result
}

// isNull reports whether n is missing or null.
func isNull(n *yaml.Node) bool {
	return n == nil || n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

// describe returns the type of n for errors, without its value.
func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case isNull(n):
		return "nothing"
	case n.ShortTag() == "!!str":
		return "a text"
	default:
		return "a number or the like; put it in quotes"
	}
}
