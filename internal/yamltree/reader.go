package yamltree

import (
	"slices"

	"go.yaml.in/yaml/v4"
)

// nodeCost is the cost of a node without its text: even an empty node takes 100 bytes of memory. A text without aliases
// costs at most four times its bytes, although a node may take only two of them.
const nodeCost = 6

// Rules are the differences between the languages. The zero value is the strictest language.
type Rules struct {
	// MaxCost bounds the size of a text: the bytes of values, and 6 for each node. Each use of an alias counts. Required.
	MaxCost int
	// Unquoted says that a number, a date, true and false may stand for a text, as they are written.
	Unquoted bool
	// Nulls says that null may stand for a text and for a mapping; both are empty. A text is as it is written, such as ~.
	Nulls bool
	// PlainMerge says that << is a key like others. Else it is a mistake.
	PlainMerge bool
	// Tag reports whether n, which has a tag other than !!str, may have it. If nil, tags are mistakes.
	Tag func(n *yaml.Node) bool
	// NoAliases is the advice for anchors and aliases, which are mistakes. If empty, they are part of the language.
	NoAliases string
}

// Reader reads the nodes of a text and counts their cost. It keeps the first mistake. From then on every node that it
// reads is empty, so its methods need no error results.
type Reader struct {
	First
	Rules
	// Text has the nodes.
	Text *Text
	// Origin returns the text of a node. It is nil if all nodes belong to Text.
	Origin func(*yaml.Node) *Text

	// Cost is the cost of all that was read.
	Cost  int
	depth int
}

// Entry is a key of a mapping and its value.
type Entry struct {
	Key       string
	At, Value *yaml.Node
}

// Of returns the text that n belongs to.
func (r *Reader) Of(n *yaml.Node) *Text {
	if r.Origin != nil {
		return r.Origin(n)
	}
	return r.Text
}

// Errorf returns an error about n, or about the whole text if n is nil.
func (r *Reader) Errorf(n *yaml.Node, format string, args ...any) *Error {
	if n == nil {
		return r.Text.Errorf(n, format, args...)
	}
	return r.Of(n).Errorf(n, format, args...)
}

// Failf calls Fail with an error about n, or about the whole text if n is nil.
func (r *Reader) Failf(n *yaml.Node, format string, args ...any) {
	if r.Err == nil {
		r.Err = r.Errorf(n, format, args...)
	}
}

// Enter goes one level deeper; the caller calls Leave. Load bounds the nesting of a text, but an alias may contain
// itself: beyond the limit every node is empty.
func (r *Reader) Enter(n *yaml.Node) {
	if r.depth++; r.depth > MaxDepth {
		r.Failf(n, "the text is nested deeper than %d; does an alias hold itself?", MaxDepth)
	}
}

// Leave ends Enter.
func (r *Reader) Leave() { r.depth-- }

// Spend counts a cost for n. After a mistake it returns false.
func (r *Reader) Spend(n *yaml.Node, cost int) bool {
	if r.Cost += cost; r.Cost > r.MaxCost {
		r.Failf(n, "aliases and other repeated parts make this text too large; write it shorter")
	}
	return r.Err == nil
}

// Value returns n or, if n is an alias, its target, and counts the cost. Every node is read through Value, so that
// aliases cannot turn a small text into a large job. Only after this call the kind of a node can be trusted.
func (r *Reader) Value(n *yaml.Node) *yaml.Node {
	v := n
	if n.Kind == yaml.AliasNode {
		v = n.Alias
	}
	switch {
	case r.NoAliases != "" && (v != n || n.Anchor != ""):
		r.Failf(n, "anchors and aliases are not supported here; %s", r.NoAliases)
	case v == nil || v.Kind == yaml.AliasNode:
		r.Failf(n, "the alias has no anchor")
	case v.Style&yaml.TaggedStyle != 0 && v.ShortTag() != "!!str" && (r.Tag == nil || !r.Tag(v)):
		r.Failf(n, "the tag is not supported; remove the word that begins with !")
	}
	if r.Err != nil || !r.Spend(n, nodeCost+len(v.Value)) {
		return &yaml.Node{}
	}
	return v
}

// Scalar reads a text, a number, a date, null, true or false. Errors call it label. After a mistake it is empty.
func (r *Reader) Scalar(n *yaml.Node, label string) *yaml.Node {
	v := r.Value(n)
	if v.Kind != yaml.ScalarNode {
		r.Failf(n, "%s must be a text, not %s", label, Describe(v))
	}
	return v
}

// String reads a text.
func (r *Reader) String(n *yaml.Node, label string) string {
	v := r.Scalar(n, label)
	switch tag := v.ShortTag(); {
	case r.Err != nil:
		return ""
	case tag != "!!str" && (!r.Unquoted || tag == "!!null" && !r.Nulls):
		r.Failf(n, "%s must be a text, not %s", label, Describe(v))
		return ""
	}
	return v.Value
}

// Bool reads true or false.
func (r *Reader) Bool(n *yaml.Node, label string) (b bool) {
	v := r.Value(n)
	if v.Kind != yaml.ScalarNode || v.ShortTag() != "!!bool" || v.Decode(&b) != nil {
		r.Failf(n, "%s is true or false", label)
	}
	return b
}

// List reads a list and returns its items.
func (r *Reader) List(n *yaml.Node, label string) []*yaml.Node {
	v := r.Value(n)
	if v.Kind != yaml.SequenceNode {
		r.Failf(n, "%s must be a list, not %s", label, Describe(v))
	}
	return v.Content
}

// Mapping reads a mapping, whose keys are distinct texts.
func (r *Reader) Mapping(n *yaml.Node, label string) []Entry {
	v := r.Value(n)
	switch {
	case r.Err != nil || r.Nulls && IsNull(v):
		return nil
	case v.Kind != yaml.MappingNode:
		r.Failf(n, "%s must be a mapping (key: value), not %s", label, Describe(v))
		return nil
	}
	entries := make([]Entry, 0, len(v.Content)/2)
	var seen map[string]bool // set for a large mapping
	if len(v.Content) > 2*fewKeys {
		seen = make(map[string]bool, len(v.Content)/2)
	}
	for i := 0; i+1 < len(v.Content); i += 2 {
		at := v.Content[i]
		if !r.PlainMerge && at.ShortTag() == "!!merge" {
			r.Failf(at, "merge keys (<<) are not supported; write the keys out")
		}
		key := r.String(at, "a key")
		if r.Err != nil {
			return nil
		}
		if seen[key] || seen == nil && hasKey(entries, key) {
			r.Failf(at, "%s", Twice(key))
			return nil
		}
		if seen != nil {
			seen[key] = true
		}
		entries = append(entries, Entry{key, at, v.Content[i+1]})
	}
	return entries
}

// fewKeys is the number of keys up to which each is compared with all others.
const fewKeys = 16

func hasKey(entries []Entry, key string) bool {
	return slices.ContainsFunc(entries, func(e Entry) bool { return e.Key == key })
}

// Known checks that all keys of entries are in known, the keys of label.
func (r *Reader) Known(entries []Entry, label string, known []string) []Entry {
	for _, e := range entries {
		if !slices.Contains(known, e.Key) {
			r.Failf(e.At, "%s", Unknown(e.Key, label, known, ""))
			return nil
		}
	}
	return entries
}
