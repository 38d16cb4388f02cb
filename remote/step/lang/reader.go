package lang

import (
	"slices"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/yamltree"
)

// reader reads the nodes of a text.
type reader struct {
	yamltree.Reader
	// tolerant makes an unknown key a warning, in unknown.
	tolerant bool
	unknowns []*Error
	steps    int // read so far
}

func newReader(t *Source) *reader {
	return &reader{Reader: yamltree.Reader{Text: t, Rules: yamltree.Rules{MaxCost: maxCost}}}
}

func (r *reader) at(n *yaml.Node) place { return place{text: r.Of(n), node: n} }

// key returns the key of an entry.
func (r *reader) key(it yamltree.Entry) word { return word{at: r.at(it.At), text: it.Key, given: true} }

// word reads a text. Errors call it label.
func (r *reader) word(n *yaml.Node, label string) word {
	text := r.String(n, label)
	if r.Err != nil {
		return word{}
	}
	return word{at: r.at(n), text: text, given: true}
}

// optional is Mapping, but accepts null as an empty mapping.
func (r *reader) optional(n *yaml.Node, label string) []yamltree.Entry {
	if r.empty(n) {
		return nil
	}
	return r.Mapping(n, label)
}

// each calls read for each key of items, a mapping that errors call label. It refuses keys that are not in known.
func (r *reader) each(items []yamltree.Entry, label string, known []string, read func(yamltree.Entry)) {
	for _, it := range items {
		if slices.Contains(known, it.Key) {
			read(it)
		} else if r.refuse(r.unknown(it, label, known)); r.Err != nil {
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
		r.Fail(bad)
	case r.Err != nil || len(r.unknowns) > maxUnknown:
	case len(r.unknowns) == maxUnknown:
		r.unknowns = append(r.unknowns, r.Text.Errorf(nil, "there are more unknown keys, which are ignored"))
	default:
		bad.Message += "; it is ignored"
		r.unknowns = append(r.unknowns, bad)
	}
}

// unknown returns the error for a key that is not in known.
func (r *reader) unknown(it yamltree.Entry, label string, known []string) *Error {
	return r.Errorf(it.At, "%s", yamltree.Unknown(it.Key, label, known, ""))
}
