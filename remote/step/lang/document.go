package lang

import (
	"slices"

	"go.yaml.in/yaml/v4"
)

// job reads the documents of a job.
func (r *reader) job(docs []*yaml.Node) (*draftDefinition, error) {
	switch len(docs) {
	case 0:
		return nil, r.text.errorf("the text is empty; write a list of steps, such as - script: echo hello")
	case 1:
		return r.loneDocument(docs[0])
	case 2:
		return r.stepFile(docs)
	default:
		return nil, r.third(docs[2])
	}
}

// step reads the documents of a step.
func (r *reader) step(docs []*yaml.Node) (*draftDefinition, error) {
	switch len(docs) {
	case 0:
		return nil, r.text.errorf("the text is empty; write the spec of the step, a line ---, and exec or run")
	case 1:
		return nil, r.at(docs[0]).beyond().errorf("a step has two documents, its spec and its command or steps; " +
			"write --- on a line between them")
	case 2:
		return r.stepFile(docs)
	default:
		return nil, r.third(docs[2])
	}
}

func (r *reader) third(n *yaml.Node) error {
	return r.at(n).beyond().errorf("there are at most two documents, a spec and a definition; this is a third")
}

// stepFile reads a spec and a definition.
func (r *reader) stepFile(docs []*yaml.Node) (*draftDefinition, error) {
	v0 := r.isV0(docs[1])
	spec, err := r.specDocument(docs[0], v0)
	if err != nil {
		return nil, err
	}
	d, err := r.definition(docs[1], v0)
	if err != nil {
		return nil, err
	}
	d.spec = spec
	return d, nil
}

// isV0 reports whether the definition n has the dialect of the blueprint.
func (r *reader) isV0(n *yaml.Node) bool {
	v := n
	if v.Kind == yaml.AliasNode && v.Alias != nil {
		v = v.Alias
	}
	if v.Kind != yaml.MappingNode {
		return false
	}
	for i := 0; i+1 < len(v.Content); i += 2 {
		if v.Content[i].Value == "type" {
			return true
		}
	}
	return false
}

// empty reports whether n is null or {}.
func (r *reader) empty(n *yaml.Node) (bool, error) {
	v, err := r.value(n)
	if err != nil {
		return false, err
	}
	return v.Kind == yaml.ScalarNode && v.ShortTag() == "!!null" || v.Kind == yaml.MappingNode && len(v.Content) == 0, nil
}

// loneDocument reads a job without a spec: a list of steps, or a mapping with the list.
func (r *reader) loneDocument(n *yaml.Node) (*draftDefinition, error) {
	v, err := r.value(n)
	if err != nil {
		return nil, err
	}
	if v.Kind == yaml.SequenceNode {
		run, err := r.run(n)
		return &draftDefinition{at: r.at(n), run: run}, err
	}
	return r.mappedJob(n)
}

// mappedJob reads a definition of today's dialect.
func (r *reader) mappedJob(n *yaml.Node) (*draftDefinition, error) {
	empty, err := r.empty(n)
	if err != nil {
		return nil, err
	}
	if empty {
		return nil, r.at(n).errorf("there are no steps; write run: and below it a list of them, such as - script: echo hello")
	}
	items, err := r.mapping(n, "a job")
	if err != nil {
		return nil, err
	}
	d := &draftDefinition{at: r.at(n)}
	for _, it := range items {
		if err := r.jobKey(d, it); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// jobKey reads one key of a definition of today's dialect.
func (r *reader) jobKey(d *draftDefinition, it item) (err error) {
	switch key := it.key.text; {
	case key == "run":
		d.run, err = r.run(it.value)
	case key == "exec":
		d.exec, err = r.exec(it.value)
	case key == "env":
		d.env, err = r.env(it.value)
	case key == "outputs":
		d.outputs, err = r.namedValues(it.value, "outputs")
	case key == "delegate":
		d.delegate, err = r.word(it.value, "delegate")
	case key == "spec":
		return it.key.at.errorf("spec stands in a document of its own; write --- on a line between it and the rest")
	case key == "type" || key == "steps":
		return it.key.at.errorf("%s belongs to the definition of a step, after its spec and a line ---; write the steps "+
			"as run", key)
	case slices.Contains(workDirs, key):
		return it.key.at.errorf("%s belongs to exec; the steps of run each have their own", key)
	case slices.Contains(stepKeys, key):
		return it.key.at.errorf("%s belongs to a step, and steps stand in a list: write - before it", key)
	default:
		return unknown(it.key, "a job", jobKeys)
	}
	return err
}

// definition reads the second of two documents.
func (r *reader) definition(n *yaml.Node, v0 bool) (*draftDefinition, error) {
	if !v0 {
		v, err := r.value(n)
		if err != nil {
			return nil, err
		}
		if v.Kind == yaml.SequenceNode {
			run, err := r.run(n)
			return &draftDefinition{at: r.at(n), run: run}, err
		}
		d, err := r.mappedJob(n)
		if d != nil {
			d.named = true
		}
		return d, err
	}
	items, err := r.mapping(n, "a definition")
	if err != nil {
		return nil, err
	}
	d := &draftDefinition{at: r.at(n), v0: true}
	var kind word
	err = each(items, "a definition with a type", definitionV0, func(it item) (err error) {
		switch it.key.text {
		case "type":
			kind, err = r.word(it.value, "type")
		case "exec":
			d.exec, err = r.exec(it.value)
		case "steps":
			d.run, err = r.run(it.value)
		case "env":
			d.env, err = r.env(it.value)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return d, d.checkType(kind)
}

// checkType checks that a definition of the blueprint's dialect has the part that its type names, and not the other.
func (d *draftDefinition) checkType(kind word) error {
	switch {
	case !slices.Contains(definitionType, kind.text):
		return kind.at.errorf("type is exec or steps")
	case kind.text == "exec" && d.exec == nil:
		return d.at.errorf("the definition has the type exec and no exec; write exec: and below it the command")
	case kind.text == "exec" && d.run != nil:
		return d.run.at.errorf("the definition has the type exec, and steps; it has one of them")
	case kind.text == "steps" && d.run == nil:
		return d.at.errorf("the definition has the type steps and no steps; write steps: and below it a list of them")
	case kind.text == "steps" && d.exec != nil:
		return d.exec.at.errorf("the definition has the type steps, and exec; it has one of them")
	}
	return nil
}

// run reads a list of steps.
func (r *reader) run(n *yaml.Node) (*draftRun, error) {
	defer r.leave()
	if err := r.enter(n); err != nil {
		return nil, err
	}
	nodes, err := r.list(n, "run")
	if err != nil {
		return nil, err
	}
	if r.steps += len(nodes); r.steps > MaxSteps { // before the first of them costs memory
		return nil, r.at(n).beyond().errorf("%d steps are too many, at most %d are allowed", r.steps, MaxSteps)
	}
	run := &draftRun{at: r.at(n), steps: make([]draft, len(nodes))}
	for i, node := range nodes {
		if err := r.entry(node, &run.steps[i]); err != nil {
			return nil, err
		}
	}
	return run, nil
}

// entry reads one step of a list.
func (r *reader) entry(n *yaml.Node, d *draft) error {
	d.at = r.at(n)
	items, err := r.mapping(n, "a step")
	if err != nil {
		return err
	}
	for _, it := range items {
		if err := r.entryKey(d, it); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) entryKey(d *draft, it item) (err error) {
	key := it.key.text
	if slices.Contains(ways, key) {
		d.ways = append(d.ways, it.key)
	}
	switch key {
	case "name":
		d.name, err = r.word(it.value, "name")
	case "when":
		d.when, err = r.word(it.value, "when")
	case "if":
		d.condition, err = r.condition(it.value)
	case "timeout":
		d.timeout, err = r.word(it.value, "timeout")
	case "script":
		d.script, err = r.word(it.value, "script")
	case "exec":
		d.exec, err = r.exec(it.value)
	case "run":
		d.run, err = r.run(it.value)
	case "step", "func":
		d.ref, err = r.reference(it.value, key)
	case "action":
		d.ref = &draftReference{at: r.at(it.value), action: true}
		d.ref.text, err = r.word(it.value, "action")
	case "inputs":
		d.inputsAt = it.key.at
		d.inputs, err = r.namedValues(it.value, "inputs")
	case "env":
		d.env, err = r.env(it.value)
	default:
		if slices.Contains(workDirs, key) {
			return it.key.at.errorf("%s belongs to exec", key)
		}
		err = unknown(it.key, "a step", stepKeys)
	}
	return err
}

// condition reads the value of if: an expression, true or false.
func (r *reader) condition(n *yaml.Node) (word, error) {
	v, err := r.value(n)
	if err != nil {
		return word{}, err
	}
	if v.Kind == yaml.ScalarNode && v.ShortTag() == "!!bool" {
		return word{at: r.at(n), text: v.Value, given: true}, nil
	}
	return r.word(n, "if")
}

// reference reads a reference: a text, or one of the long forms.
func (r *reader) reference(n *yaml.Node, key string) (*draftReference, error) {
	ref := &draftReference{at: r.at(n)}
	v, err := r.value(n)
	if err != nil {
		return nil, err
	}
	if v.Kind != yaml.MappingNode {
		ref.text, err = r.word(n, key)
		return ref, err
	}
	items, err := r.mapping(n, key)
	if err != nil {
		return nil, err
	}
	ref.long = true
	return ref, each(items, key, []string{"git", "zip", "oci"}, func(it item) (err error) {
		switch it.key.text {
		case "git":
			ref.git, err = r.fields(it.value, "git", gitKeys, gitRequired)
		case "zip":
			ref.zip, err = r.fields(it.value, "zip", zipKeys, zipRequired)
		case "oci":
			ref.oci, err = r.fields(it.value, "oci", ociKeys, ociRequired)
		}
		return err
	})
}

// fields reads a mapping of texts. It may have the keys known and must have the keys required.
func (r *reader) fields(n *yaml.Node, what string, known, required []string) ([]field, error) {
	items, err := r.mapping(n, what)
	if err != nil {
		return nil, err
	}
	fields := make([]field, 0, len(items))
	err = each(items, what, known, func(it item) error {
		value, err := r.word(it.value, it.key.text)
		if err == nil && value.text == "" {
			err = value.at.errorf("%s is empty", it.key.text)
		}
		fields = append(fields, field{it.key, value})
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, key := range required {
		if !slices.ContainsFunc(fields, func(f field) bool { return f.key.text == key }) {
			return nil, r.at(n).errorf("%s has no %s", what, key)
		}
	}
	return fields, nil
}

func (r *reader) exec(n *yaml.Node) (*draftExec, error) {
	items, err := r.mapping(n, "exec")
	if err != nil {
		return nil, err
	}
	e := &draftExec{at: r.at(n), commandAt: r.at(n)}
	for _, it := range items {
		switch key := it.key.text; {
		case key == "command":
			e.commandAt = r.at(it.value)
			e.command, err = r.words(it.value, "command")
		case key == "timeout":
			e.timeout, err = r.word(it.value, "timeout")
		case slices.Contains(workDirs, key):
			if e.workDir.given {
				return nil, it.key.at.errorf("the directory is given twice, the second time as %s; write work_dir once", key)
			}
			e.workDir, err = r.word(it.value, key)
		default:
			err = unknown(it.key, "exec", execKeys)
		}
		if err != nil {
			return nil, err
		}
	}
	return e, nil
}

func (r *reader) words(n *yaml.Node, what string) ([]word, error) {
	nodes, err := r.list(n, what)
	if err != nil {
		return nil, err
	}
	return collect(nodes, func(n *yaml.Node) (word, error) { return r.word(n, "an argument of "+what) })
}

func (r *reader) env(n *yaml.Node) ([]pair, error) {
	items, err := r.optional(n, "env")
	if err != nil {
		return nil, err
	}
	return collect(items, func(it item) (pair, error) {
		value, err := r.word(it.value, "the value of"+Quote(it.key.text))
		return pair{it.key, value}, err
	})
}

// namedValues reads a mapping of values of any type.
func (r *reader) namedValues(n *yaml.Node, what string) ([]namedValue, error) {
	items, err := r.optional(n, what)
	if err != nil {
		return nil, err
	}
	return collect(items, func(it item) (namedValue, error) {
		value, err := r.anyValue(it.value, "the value of"+Quote(it.key.text))
		return namedValue{it.key, value}, err
	})
}
