package lang

import (
	"go.yaml.in/yaml/v4"
)

// specDocument reads the first of two documents, which may be empty.
func (r *reader) specDocument(n *yaml.Node, v0 bool) (spec draftSpec) {
	for _, it := range r.optional(n, "the first of two documents, the spec,") {
		if it.key.text != "spec" {
			r.refuse(it.key.at.errorf("unknown key%s; the first of two documents holds spec, the second run or exec",
				Quote(it.key.text)))
			continue
		}
		r.spec(it.value, &spec, v0)
	}
	return spec
}

func (r *reader) spec(n *yaml.Node, spec *draftSpec, v0 bool) {
	r.each(r.optional(n, "spec"), "spec", specKeys, func(it item) {
		switch it.key.text {
		case "inputs":
			known := inputKeys
			if v0 {
				known = inputKeysV0
			}
			spec.inputs = r.params(it.value, "inputs", known, v0)
		case "outputs":
			r.specOutputs(it.value, spec, v0)
		case "requests":
			spec.requests = r.requests(it.value)
		}
	})
}

// specOutputs reads the outputs of a spec: their list, or the word delegate.
func (r *reader) specOutputs(n *yaml.Node, spec *draftSpec, v0 bool) {
	v := r.value(n)
	switch {
	case v.Kind != yaml.ScalarNode || v.ShortTag() != "!!str":
		spec.outputs = r.params(n, "outputs", outputKeys, v0)
	case v.Value != delegateWord:
		r.fail(r.at(n).errorf("outputs is a mapping of outputs, or the word %s", delegateWord))
	default:
		spec.delegate = r.word(n, "outputs")
	}
}

// params reads inputs or outputs.
func (r *reader) params(n *yaml.Node, label string, known []string, v0 bool) []draftParam {
	read := r.mapping
	if v0 {
		read = r.optional
	}
	items := r.optional(n, label)
	all := make([]draftParam, len(items))
	for i, it := range items {
		p := &all[i]
		p.name = it.key
		keys := read(it.value, "the value of"+Quote(it.key.text))
		r.each(keys, "it", known, func(k item) { r.paramKey(p, k) })
		if !v0 && !p.kind.given {
			r.fail(it.key.at.errorf("%s has no type; give it one of %s", p.label(), typeList))
		}
	}
	return all
}

func (r *reader) paramKey(p *draftParam, k item) {
	switch k.key.text {
	case "type":
		p.kind = r.word(k.value, "type")
	case "default":
		v := r.anyValue(k.value, "default")
		p.preset = &v
	case "description":
		p.description = r.word(k.value, "description")
	case "sensitive":
		p.sensitive = r.boolean(k.value, "sensitive")
	case "options":
		p.options = r.words(k.value, "options")
	case "match":
		p.match = r.word(k.value, "match")
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
	r.each(r.optional(n, "requests"), "requests", requestKeys, func(it item) {
		switch it.key.text {
		case "env":
			req.env = r.words(it.value, "env")
		case "vars":
			req.vars = r.words(it.value, "vars")
		}
	})
	return req
}

func (r *reader) boolean(n *yaml.Node, label string) (b bool) {
	v := r.value(n)
	if v.Kind != yaml.ScalarNode || v.ShortTag() != "!!bool" || v.Decode(&b) != nil {
		r.fail(r.at(n).errorf("%s is true or false", label))
	}
	return b
}
