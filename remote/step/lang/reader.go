package lang

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// reader reads the nodes of a text and counts their cost. It keeps the first mistake. From then on every node that it
// reads is empty, so its methods need no error results.
type reader struct {
	mistake
	text *text
	// tolerant makes an unknown key a warning, in unknown.
	tolerant bool
	unknown  []*Error
	// origin returns the source of a node. It is nil if all nodes belong to text.
	origin func(*yaml.Node) *Source
	cost   int
	steps  int // read so far
	depth  int // of lists of steps and of values, including aliases
}

// enter goes one level deeper; the caller calls leave. The loader bounds the nesting of the text, but an alias may
// contain itself: beyond the limit every node is empty.
func (r *reader) enter(n *yaml.Node) {
	if r.depth++; r.depth > maxDepth {
		r.fail(r.at(n).errorf("it is nested deeper than %d; does an alias hold itself?", maxDepth))
	}
}

func (r *reader) leave() { r.depth-- }

func (r *reader) at(n *yaml.Node) place {
	if r.origin != nil {
		return place{text: r.origin(n).text, node: n}
	}
	return place{text: r.text, node: n}
}

// value returns n or, if n is an alias, its target, and counts the cost. Every node is read through value, so that
// aliases cannot turn a small text into a large job. Only after this call the kind of a node can be trusted.
func (r *reader) value(n *yaml.Node) *yaml.Node {
	target := n
	if n.Kind == yaml.AliasNode {
		if target = n.Alias; target == nil || target.Kind == yaml.AliasNode {
			r.fail(r.at(n).errorf("the alias has no anchor"))
			return &yaml.Node{}
		}
	}
	if r.cost += nodeCost + len(target.Value); r.cost > maxCost {
		r.fail(r.at(n).errorf("the aliases make this text too large; write the values out"))
	}
	if target.Style&yaml.TaggedStyle != 0 && target.ShortTag() != "!!str" {
		r.fail(r.at(n).errorf("tags are not supported; remove the one that begins with !"))
	}
	if r.err != nil {
		return &yaml.Node{}
	}
	return target
}

// word reads a text. Errors call it label.
func (r *reader) word(n *yaml.Node, label string) word {
	v := r.value(n)
	if v.Kind != yaml.ScalarNode || v.ShortTag() != "!!str" {
		r.fail(r.at(n).errorf("%s must be a text, not %s", label, describe(v)))
		return word{}
	}
	return word{at: r.at(n), text: v.Value, given: true}
}

// list reads a list and returns its items.
func (r *reader) list(n *yaml.Node, label string) []*yaml.Node {
	v := r.value(n)
	if v.Kind != yaml.SequenceNode {
		r.fail(r.at(n).errorf("%s must be a list, not %s", label, describe(v)))
	}
	return v.Content
}

// item is a key of a mapping and its value.
type item struct {
	key   word
	value *yaml.Node
}

// mapping reads a mapping with distinct texts as keys.
func (r *reader) mapping(n *yaml.Node, label string) []item {
	v := r.value(n)
	if v.Kind != yaml.MappingNode {
		r.fail(r.at(n).errorf("%s must be a mapping (key: value), not %s", label, describe(v)))
		return nil
	}
	items := make([]item, 0, len(v.Content)/2)
	var seen map[string]bool // set for a large mapping
	if len(v.Content) > 2*fewKeys {
		seen = make(map[string]bool, len(v.Content)/2)
	}
	for i := 0; i+1 < len(v.Content); i += 2 {
		if v.Content[i].ShortTag() == "!!merge" {
			r.fail(r.at(v.Content[i]).errorf("merge keys (<<) are not supported; write the keys out"))
		}
		key := r.word(v.Content[i], "a key")
		if r.err != nil {
			return nil
		}
		if seen[key.text] || seen == nil && hasKey(items, key.text) {
			r.fail(key.at.errorf("the key%s is given twice", Quote(key.text)))
		}
		if seen != nil {
			seen[key.text] = true
		}
		items = append(items, item{key, v.Content[i+1]})
	}
	return items
}

// fewKeys is the number of keys up to which each is compared with all others.
const fewKeys = 16

func hasKey(items []item, key string) bool {
	return slices.ContainsFunc(items, func(it item) bool { return it.key.text == key })
}

// optional is mapping, but accepts null as an empty mapping.
func (r *reader) optional(n *yaml.Node, label string) []item {
	if r.empty(n) {
		return nil
	}
	return r.mapping(n, label)
}

// each calls read for each key of items, a mapping that errors call label. It refuses keys that are not in known.
func (r *reader) each(items []item, label string, known []string, read func(item)) {
	for _, it := range items {
		if slices.Contains(known, it.key.text) {
			read(it)
		} else if r.refuse(unknown(it.key, label, known)); r.err != nil {
			return
		}
	}
}

// maxUnknown bounds the unknown keys of a text that are reported as warnings.
const maxUnknown = 20

// refuse records an unknown key: as a mistake, or as a warning if the reader is tolerant.
func (r *reader) refuse(bad *Error) {
	switch {
	case !r.tolerant:
		r.fail(bad)
	case r.err != nil || len(r.unknown) > maxUnknown:
	case len(r.unknown) == maxUnknown:
		r.unknown = append(r.unknown, r.text.errorf("there are more unknown keys, which are ignored"))
	default:
		bad.Message += "; it is ignored"
		r.unknown = append(r.unknown, bad)
	}
}

// unknown returns the error for a key that is not in known.
func unknown(key word, label string, known []string) *Error {
	return key.at.errorf("unknown key%s%s", Quote(key.text),
		Suggest(key.text, known, fmt.Sprintf("; %s has %s", label, strings.Join(known, ", "))))
}

// describe returns the type of v for errors, without its value.
func describe(v *yaml.Node) string {
	switch v.Kind { //nolint:exhaustive // the others never get here
	case yaml.SequenceNode:
		return "a list"
	case yaml.MappingNode:
		return "a mapping"
	}
	switch v.ShortTag() {
	case "!!null":
		return `nothing; for an empty text write ""`
	case "!!int", "!!float":
		return "a number; put it in quotes"
	case "!!bool":
		return "true or false; put it in quotes"
	case "!!timestamp":
		return "a date; put it in quotes"
	case "!!str":
		return "a text"
	default:
		return "something else; put it in quotes"
	}
}
