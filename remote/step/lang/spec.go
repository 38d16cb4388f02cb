package lang

import (
	"go.yaml.in/yaml/v4"
)

// specDocument reads the first of two documents, which may be empty.
func (r *reader) specDocument(n *yaml.Node, v0 bool) (*draftSpec, error) {
	items, err := r.optional(n, "the first of two documents, the spec,")
	if err != nil {
		return nil, err
	}
	spec := &draftSpec{}
	for _, it := range items {
		if it.key.text != "spec" {
			return nil, it.key.at.errorf("unknown key%s; the first of two documents holds spec, the second run or exec",
				Quote(it.key.text))
		}
		if err := r.spec(it.value, spec, v0); err != nil {
			return nil, err
		}
	}
	return spec, nil
}

func (r *reader) spec(n *yaml.Node, spec *draftSpec, v0 bool) error {
	items, err := r.optional(n, "spec")
	if err != nil {
		return err
	}
	return each(items, "spec", specKeys, func(it item) (err error) {
		switch it.key.text {
		case "inputs":
			known := inputKeys
			if v0 {
				known = inputKeysV0
			}
			spec.inputs, err = r.params(it.value, "inputs", known, v0)
		case "outputs":
			err = r.specOutputs(it.value, spec, v0)
		case "requests":
			spec.requests, err = r.requests(it.value)
		}
		return err
	})
}

// specOutputs reads the outputs of a spec: their list, or the word delegate.
func (r *reader) specOutputs(n *yaml.Node, spec *draftSpec, v0 bool) error {
	v, err := r.value(n)
	if err != nil {
		return err
	}
	if v.Kind != yaml.ScalarNode || v.ShortTag() != "!!str" {
		spec.outputs, err = r.params(n, "outputs", outputKeys, v0)
		return err
	}
	if v.Value != delegateWord {
		return r.at(n).errorf("outputs is a mapping of outputs, or the word %s", delegateWord)
	}
	spec.delegate, err = r.word(n, "outputs")
	return err
}

// params reads inputs or outputs.
func (r *reader) params(n *yaml.Node, what string, known []string, v0 bool) ([]draftParam, error) {
	items, err := r.optional(n, what)
	if err != nil {
		return nil, err
	}
	return collect(items, func(it item) (draftParam, error) {
		p := draftParam{name: it.key}
		err := r.param(it, &p, known, v0)
		return p, err
	})
}

func (r *reader) param(it item, p *draftParam, known []string, v0 bool) error {
	read := r.mapping
	if v0 {
		read = r.optional
	}
	keys, err := read(it.value, "the value of"+Quote(it.key.text))
	if err != nil {
		return err
	}
	if err := each(keys, "it", known, func(k item) error { return r.paramKey(p, k) }); err != nil {
		return err
	}
	if !v0 && !p.kind.given {
		return it.key.at.errorf("%s has no type; give it one of %s", p.label(), typeList)
	}
	return nil
}

func (r *reader) paramKey(p *draftParam, k item) (err error) {
	switch k.key.text {
	case "type":
		p.kind, err = r.word(k.value, "type")
	case "default":
		var v draftValue
		v, err = r.anyValue(k.value, "default")
		p.preset = &v
	case "description":
		p.description, err = r.word(k.value, "description")
	case "sensitive":
		p.sensitive, err = r.boolean(k.value, "sensitive")
	case "options":
		p.options, err = r.words(k.value, "options")
	case "match":
		p.match, err = r.word(k.value, "match")
	}
	return err
}

// label returns the name of the parameter for errors.
func (p *draftParam) label() string {
	if name := Quote(p.name.text); name != "" {
		return name[1:]
	}
	return "it"
}

func (r *reader) requests(n *yaml.Node) (*draftRequests, error) {
	items, err := r.optional(n, "requests")
	if err != nil {
		return nil, err
	}
	req := &draftRequests{}
	return req, each(items, "requests", requestKeys, func(it item) (err error) {
		switch it.key.text {
		case "env":
			req.env, err = r.words(it.value, "env")
		case "vars":
			req.vars, err = r.words(it.value, "vars")
		}
		return err
	})
}

func (r *reader) boolean(n *yaml.Node, what string) (bool, error) {
	v, err := r.value(n)
	if err != nil {
		return false, err
	}
	var b bool
	if v.Kind != yaml.ScalarNode || v.ShortTag() != "!!bool" || v.Decode(&b) != nil {
		return false, r.at(n).errorf("%s is true or false", what)
	}
	return b, nil
}
