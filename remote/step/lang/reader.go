package lang

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// reader reads the nodes of a text and counts their cost.
type reader struct {
	text *text
	// origin returns the source of a node; nil if all nodes belong to text.
	origin func(*yaml.Node) *Source
	cost   int
	steps  int // read so far
	depth  int // of lists of steps and of values, including aliases
}

// enter goes one level deeper; the caller calls leave. The loader bounds the nesting of the text, but not that of an
// alias that holds itself.
func (r *reader) enter(n *yaml.Node) error {
	if r.depth++; r.depth > maxDepth {
		return r.at(n).beyond().errorf("it is nested deeper than %d; does an alias hold itself?", maxDepth)
	}
	return nil
}

func (r *reader) leave() { r.depth-- }

func (r *reader) at(n *yaml.Node) place {
	if r.origin != nil {
		return place{text: r.origin(n).text, node: n}
	}
	return place{text: r.text, node: n}
}

// value returns n or, if n is an alias, its target, and counts the cost. Every node is read through value, so that
// aliases cannot turn a small text into a large job. The kind of a node may be trusted only after this call.
func (r *reader) value(n *yaml.Node) (*yaml.Node, error) {
	target := n
	if n.Kind == yaml.AliasNode {
		if target = n.Alias; target == nil || target.Kind == yaml.AliasNode {
			return nil, r.at(n).beyond().errorf("the alias has no anchor")
		}
	}
	if r.cost += nodeCost + len(target.Value); r.cost > maxCost {
		return nil, r.at(n).beyond().errorf("the aliases make this text too large; write the values out")
	}
	if target.Style&yaml.TaggedStyle != 0 && target.ShortTag() != "!!str" {
		return nil, r.at(n).beyond().errorf("tags are not supported; remove the one that begins with !")
	}
	return target, nil
}

// word reads a text, which is called what in errors.
func (r *reader) word(n *yaml.Node, what string) (word, error) {
	v, err := r.value(n)
	if err != nil {
		return word{}, err
	}
	if v.Kind != yaml.ScalarNode || v.ShortTag() != "!!str" {
		return word{}, r.at(n).errorf("%s must be a text, not %s", what, describe(v))
	}
	return word{at: r.at(n), text: v.Value, given: true}, nil
}

// list reads a list and returns its items.
func (r *reader) list(n *yaml.Node, what string) ([]*yaml.Node, error) {
	v, err := r.value(n)
	if err != nil {
		return nil, err
	}
	if v.Kind != yaml.SequenceNode {
		return nil, r.at(n).errorf("%s must be a list, not %s", what, describe(v))
	}
	return v.Content, nil
}

// item is a key of a mapping and its value.
type item struct {
	key   word
	value *yaml.Node
}

// mapping reads a mapping with distinct texts as keys.
func (r *reader) mapping(n *yaml.Node, what string) ([]item, error) {
	v, err := r.value(n)
	if err != nil {
		return nil, err
	}
	if v.Kind != yaml.MappingNode {
		return nil, r.at(n).errorf("%s must be a mapping (key: value), not %s", what, describe(v))
	}
	items := make([]item, 0, len(v.Content)/2)
	var seen map[string]bool // set for a large mapping
	if len(v.Content) > 2*fewKeys {
		seen = make(map[string]bool, len(v.Content)/2)
	}
	for i := 0; i+1 < len(v.Content); i += 2 {
		if v.Content[i].ShortTag() == "!!merge" {
			return nil, r.at(v.Content[i]).beyond().errorf("merge keys (<<) are not supported; write the keys out")
		}
		key, err := r.key(v.Content[i])
		if err != nil {
			return nil, err
		}
		if seen[key.text] || seen == nil && hasKey(items, key.text) {
			return nil, key.at.beyond().errorf("the key%s is given twice", Quote(key.text))
		}
		if seen != nil {
			seen[key.text] = true
		}
		items = append(items, item{key, v.Content[i+1]})
	}
	return items, nil
}

// fewKeys is the number of keys up to which they are compared one by one.
const fewKeys = 16

func hasKey(items []item, key string) bool {
	return slices.ContainsFunc(items, func(it item) bool { return it.key.text == key })
}

// key reads a key. A schema cannot find a key that is not a text.
func (r *reader) key(n *yaml.Node) (word, error) {
	key, err := r.word(n, "a key")
	if bad, ok := errors.AsType[*Error](err); ok {
		bad.semantic = true
	}
	return key, err
}

// optional is mapping, but null counts as an empty mapping.
func (r *reader) optional(n *yaml.Node, what string) ([]item, error) {
	empty, err := r.empty(n)
	if err != nil || empty {
		return nil, err
	}
	return r.mapping(n, what)
}

// each calls read for each key of items, a mapping that errors call what. It refuses keys that are not in known.
func each(items []item, what string, known []string, read func(item) error) error {
	for _, it := range items {
		if !slices.Contains(known, it.key.text) {
			return unknown(it.key, what, known)
		}
		if err := read(it); err != nil {
			return err
		}
	}
	return nil
}

// collect reads each part of list.
func collect[T, U any](list []T, read func(T) (U, error)) ([]U, error) {
	all := make([]U, 0, len(list))
	for _, part := range list {
		u, err := read(part)
		if err != nil {
			return nil, err
		}
		all = append(all, u)
	}
	return all, nil
}

// unknown returns the error for a key that is not in known.
func unknown(key word, what string, known []string) *Error {
	return key.at.errorf("unknown key%s%s", Quote(key.text),
		Suggest(key.text, known, fmt.Sprintf("; %s has %s", what, strings.Join(known, ", "))))
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
