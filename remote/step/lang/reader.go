package lang

import (
	"errors"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// reader reads the nodes of one text and counts what that costs.
type reader struct {
	text *text
	// origin tells where a node comes from, if not all of them are text's.
	origin func(*yaml.Node) *Source
	cost   int
	steps  int // read so far
	depth  int // of lists of steps and of values, aliases followed
}

// enter goes one level deeper, which the caller leaves again. The text's own nesting is bounded, but that
// of an alias that holds itself is not.
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

// value returns what n stands for: n, or what it is an alias of. Every node is read through it, so
// that aliases, of aliases too, cannot make a small text a large job. Only below it are kinds trusted.
func (r *reader) value(n *yaml.Node) (*yaml.Node, error) {
	target := n
	if n.Kind == yaml.AliasNode {
		if target = n.Alias; target == nil || target.Kind == yaml.AliasNode {
			return nil, r.at(n).beyond().errorf("the alias stands for nothing")
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

// word reads a text. what names it in errors.
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

// mapping reads a mapping whose keys are texts that differ.
func (r *reader) mapping(n *yaml.Node, what string) ([]item, error) {
	v, err := r.value(n)
	if err != nil {
		return nil, err
	}
	if v.Kind != yaml.MappingNode {
		return nil, r.at(n).errorf("%s must be a mapping (key: value), not %s", what, describe(v))
	}
	items := make([]item, 0, len(v.Content)/2)
	var seen map[string]bool // of a large mapping
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
			return nil, key.at.beyond().errorf("the key%s stands here for the second time", quote(key.text))
		}
		if seen != nil {
			seen[key.text] = true
		}
		items = append(items, item{key, v.Content[i+1]})
	}
	return items, nil
}

// fewKeys is how many keys are compared one by one.
const fewKeys = 16

func hasKey(items []item, key string) bool {
	return slices.ContainsFunc(items, func(it item) bool { return it.key.text == key })
}

// key reads the key of a mapping. A schema sees only keys that are texts.
func (r *reader) key(n *yaml.Node) (word, error) {
	key, err := r.word(n, "a key")
	if bad, ok := errors.AsType[*Error](err); ok {
		bad.semantic = true
	}
	return key, err
}

// optional is mapping, where null stands for an empty one.
func (r *reader) optional(n *yaml.Node, what string) ([]item, error) {
	empty, err := r.empty(n)
	if err != nil || empty {
		return nil, err
	}
	return r.mapping(n, what)
}

// unknown is the error for a key of what that is not one of known.
func unknown(key word, what string, known []string) *Error {
	if near := nearest(key.text, known); near != "" {
		return key.at.errorf("unknown key%s, did you mean %q?", quote(key.text), near)
	}
	return key.at.errorf("unknown key%s; %s has %s", quote(key.text), what, strings.Join(known, ", "))
}

// describe says what v is, for errors, without its value.
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
