package lang

import (
	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/yamltree"
)

// specDocument reads the first of two documents, which may be empty.
func (r *reader) specDocument(n *yaml.Node, v0 bool) (spec draftSpec) {
	for _, it := range r.optional(n, "the first of two documents, the spec,") {
		if it.Key != "spec" {
			r.refuse(r.Errorf(it.At, "unknown key%s; the first of two documents holds spec, the second run or exec",
				Quote(it.Key)))
			continue
		}
		r.spec(it.Value, &spec, v0)
	}
	return spec
}

func (r *reader) spec(n *yaml.Node, spec *draftSpec, v0 bool) {
	r.each(r.optional(n, "spec"), "spec", specKeys, func(it yamltree.Entry) {
		switch it.Key {
		case "inputs":
			known := inputKeys
			if v0 {
				known = inputKeysV0
			}
			spec.inputs = r.params(it.Value, "inputs", known, v0)
		case "outputs":
			r.specOutputs(it.Value, spec, v0)
		case "requests":
			spec.requests = r.requests(it.Value)
		}
	})
}

// specOutputs reads the outputs of a spec: their list, or the word delegate.
func (r *reader) specOutputs(n *yaml.Node, spec *draftSpec, v0 bool) {
	v := r.Value(n)
	switch {
	case v.Kind != yaml.ScalarNode || v.ShortTag() != "!!str":
		spec.outputs = r.params(n, "outputs", outputKeys, v0)
	case v.Value != delegateWord:
		r.Failf(n, "outputs is a mapping of outputs, or the word %s", delegateWord)
	default:
		spec.delegate = r.word(n, "outputs")
	}
}

// params reads inputs or outputs.
func (r *reader) params(n *yaml.Node, label string, known []string, v0 bool) []draftParam {
	read := r.Mapping
	if v0 {
		read = r.optional
	}
	items := r.optional(n, label)
	all := make([]draftParam, len(items))
	for i, it := range items {
		p := &all[i]
		p.name = r.key(it)
		keys := read(it.Value, "the value of"+Quote(it.Key))
		r.each(keys, "it", known, func(k yamltree.Entry) { r.paramKey(p, k) })
		if !v0 && !p.kind.given {
			r.Failf(it.At, "%s has no type; give it one of %s", p.label(), typeList)
		}
	}
	return all
}

func (r *reader) paramKey(p *draftParam, k yamltree.Entry) {
	switch k.Key {
	case "type":
		p.kind = r.word(k.Value, "type")
	case "default":
		v := r.anyValue(k.Value, "default")
		p.preset = &v
	case "description":
		p.description = r.word(k.Value, "description")
	case "sensitive":
		p.sensitive = r.Bool(k.Value, "sensitive")
	case "options":
		p.options = r.words(k.Value, "options")
	case "match":
		p.match = r.word(k.Value, "match")
	}
}

// label returns the name of the parameter for errors.
func (p *draftParam) label() string {
	if name := Quote(p.name.text); name != "" {
		return name[1:]
	}
	return "it"
}

func (r *reader) requests(n *yaml.Node) *draftRequests {
	req := &draftRequests{}
	r.each(r.optional(n, "requests"), "requests", requestKeys, func(it yamltree.Entry) {
		switch it.Key {
		case "env":
			req.env = r.words(it.Value, "env")
		case "vars":
			req.vars = r.words(it.Value, "vars")
		}
	})
	return req
}
