package gitlabci

import (
	"cmp"
	"iter"
	"slices"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/yamltree"
	"github.com/stepmux/stepmux/remote/step/lang"
)

const (
	// maxCost bounds the sum of all nodes and their copies. It is enough for about half a million nodes.
	maxCost = 32 << 20
	// nodeCost is the cost of a node without its text, entryCost that of its place in a list.
	nodeCost, entryCost = 64, 8
)

// tree makes copies of nodes, without aliases and merge keys. It records the text that each node comes from, and counts
// the cost. After a mistake its nodes are empty, so its methods need no error results.
type tree struct {
	yamltree.Reader                             // its Text is the main file
	others          map[*yaml.Node]*lang.Source // for nodes that do not come from it

	spelled  map[*yaml.Node]string // the text of scalars in the file whose value is a different text
	warnings []*lang.Error         // each once
	warned   map[string]bool       // by the text of the warning
}

func newTree(main *lang.Source) *tree {
	t := &tree{others: map[*yaml.Node]*lang.Source{}, spelled: map[*yaml.Node]string{}, warned: map[string]bool{}}
	t.Reader = yamltree.Reader{
		Text: main, Origin: t.origin, Rules: yamltree.Rules{MaxCost: maxCost, Tag: isReference},
	}
	return t
}

// origin returns the text that n, or the original of n, comes from.
func (t *tree) origin(n *yaml.Node) *lang.Source {
	if src := t.others[n]; src != nil {
		return src
	}
	return t.Text
}

// fail calls Fail and returns an empty node.
func (t *tree) fail(err error) *yaml.Node {
	t.Fail(err)
	return &yaml.Node{}
}

// failf calls Failf and returns an empty node.
func (t *tree) failf(n *yaml.Node, format string, args ...any) *yaml.Node {
	t.Failf(n, format, args...)
	return &yaml.Node{}
}

// warnf adds a warning about n, unless it is there already.
func (t *tree) warnf(n *yaml.Node, format string, args ...any) {
	w := t.Errorf(n, format, args...)
	if !t.warned[w.Error()] {
		t.warned[w.Error()] = true
		t.warnings = append(t.warnings, w)
	}
}

// keep removes all warnings but the first n.
func (t *tree) keep(n int) {
	for _, w := range t.warnings[n:] {
		delete(t.warned, w.Error())
	}
	t.warnings = t.warnings[:n]
}

// warnOfValues adds a warning for each scalar in n whose value is not the text in the file.
func (t *tree) warnOfValues(n *yaml.Node) { t.warnOf(n, true) }

// warnOf is warnOfValues. Without words it passes words such as yes, which may be meant as they are read.
func (t *tree) warnOf(n *yaml.Node, words bool) {
	switch text, other := t.spelled[n]; {
	case !other, !words && (isNull(n) || n.ShortTag() == tagBool):
	case isNull(n):
		t.warnf(n, "GitLab reads %s as an empty value; to keep the text, quote it: %q", text, text)
	case n.Tag == tagText: // a symbol, which may be anything
		t.warnf(n, "GitLab removes the colon at the beginning of this text; to keep it, quote the text")
	default:
		t.warnf(n, "GitLab reads %.64s as %.64s; to keep the text, quote it: %.64q", text, n.Value, text)
	}
	for _, child := range n.Content {
		t.warnOf(child, words)
	}
}

// checkName checks that a key, which errors call label, is a text.
func (t *tree) checkName(key *yaml.Node, label string) {
	switch text := cmp.Or(t.spelled[key], key.Value); {
	case key.ShortTag() != tagText:
		t.failf(key, "%s must be a text, and GitLab does not read this as one; quote it: %.64q", label, text)
	case text != key.Value:
		t.warnOfValues(key)
	}
}

// spend counts a copy of n. After a mistake it returns false: then no more may be copied.
func (t *tree) spend(n *yaml.Node) bool {
	return t.Spend(n, nodeCost+len(n.Value)+entryCost*len(n.Content))
}

// copyOf returns a copy of n without its content.
func (t *tree) copyOf(n *yaml.Node) *yaml.Node {
	c := &yaml.Node{Kind: n.Kind, Style: n.Style, Tag: n.Tag, Value: n.Value, Line: n.Line, Column: n.Column}
	if src := t.others[n]; src != nil {
		t.others[c] = src
	}
	if text, other := t.spelled[n]; other {
		t.spelled[c] = text
	}
	return c
}

// made returns a new node with the place of n.
func (t *tree) made(n *yaml.Node, kind yaml.Kind, content ...*yaml.Node) *yaml.Node {
	c := t.copyOf(n)
	delete(t.spelled, c)
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
func (t *tree) expand(src *lang.Source, n *yaml.Node) *yaml.Node {
	defer t.Leave()
	if src != t.Text {
		t.others[n] = src
	}
	t.Enter(n)
	v := t.Value(n)
	if src != t.Text {
		t.others[v] = src
	}
	if !t.Spend(v, nodeCost+entryCost*len(v.Content)) {
		return &yaml.Node{}
	}
	c := t.copyOf(v)
	switch {
	case v.Kind == yaml.MappingNode:
		t.expandMapping(src, v, c)
		return c
	case v.Kind == yaml.ScalarNode && v.Style&^yaml.FlowStyle == 0:
		t.readScalar(c)
	}
	for _, item := range v.Content {
		c.Content = append(c.Content, t.expand(src, item))
	}
	return c
}

// readScalar gives c, a scalar without quotes and tag, the value that GitLab reads.
func (t *tree) readScalar(c *yaml.Node) {
	tag, value, ok := readScalar(c.Value)
	if !ok {
		t.failf(c, "GitLab refuses a file with a date, a time or a number of this form; quote it: %.64q", c.Value)
		return
	}
	if value != c.Value {
		t.spelled[c] = c.Value
	}
	c.Tag, c.Value = tag, value
}

// expandMapping adds the keys of the mapping v to c. As in GitLab, whose server is written in Ruby, the last value of a
// key counts, the keys of a merge key replace those before it, and those after it replace them. Of a list of mappings
// the first one takes precedence. A merge key may be quoted.
func (t *tree) expandMapping(src *lang.Source, v, c *yaml.Node) {
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
		e := t.expand(src, value)
		if key.Kind == yaml.ScalarNode && key.Value == mergeKey && key.Style&yaml.TaggedStyle == 0 {
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
		k := t.expand(src, key)
		switch {
		case k.Kind != yaml.ScalarNode:
			t.failf(k, "a key must be a text")
		case given[k.Value]:
			t.warnOfSecond(k)
		}
		given[k.Value] = true
		set(k, e)
	}
}

// mergeKey is the key whose value is merged into its mapping.
const mergeKey = "<<"

// warnOfSecond adds a warning about a key that its mapping has had before.
func (t *tree) warnOfSecond(key *yaml.Node) {
	t.warnf(key, "%s: as in GitLab, this one counts, and the one before it has no effect", yamltree.Twice(key.Value))
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
// other. If it is empty, a list of the keys takes its place.
func (t *tree) checkKeys(n *yaml.Node, label string, known []string, hint string) {
	for key := range entries(n) {
		if !slices.Contains(known, key.Value) {
			t.failf(key, "%s", yamltree.Unknown(key.Value, label, known, hint))
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
func isNull(n *yaml.Node) bool { return yamltree.IsNull(n) }

// describe returns the type of n for errors, without its value.
func describe(n *yaml.Node) string { return yamltree.Describe(n) }
