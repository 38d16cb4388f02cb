package lang

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// job reads the documents of a job.
func (r *reader) job(docs []*yaml.Node) *draftDefinition {
	if len(docs) == 1 {
		return r.readV1(docs[0])
	}
	d := r.stepFile(docs, "a list of steps, such as - script: echo hello")
	if d != nil {
		d.named = false // as in a job with one document
	}
	return d
}

// step reads the documents of a step.
func (r *reader) step(docs []*yaml.Node) *draftDefinition {
	return r.stepFile(docs, "the spec of the step, a line ---, and exec or run")
}

// stepFile reads a spec and a definition. For an empty text, the error suggests example.
func (r *reader) stepFile(docs []*yaml.Node, example string) *draftDefinition {
	switch len(docs) {
	case 0:
		r.fail(r.text.errorf("the text is empty; write %s", example))
		return nil
	case 1:
		r.fail(r.at(docs[0]).errorf("a step has two documents, its spec and its command or steps; " +
			"write --- on a line between them"))
		return nil
	case 3:
		r.fail(r.at(docs[2]).errorf("there are at most two documents, a spec and a definition; this is a third"))
		return nil
	}
	v0 := isV0(docs[1])
	spec := r.specDocument(docs[0], v0)
	read := r.readV1
	if v0 {
		read = r.readV0
	}
	d := read(docs[1])
	d.spec, d.named = spec, !v0 && r.value(docs[1]).Kind == yaml.MappingNode
	return d
}

// isV0 reports whether the definition n has the dialect of the blueprint.
func isV0(n *yaml.Node) bool {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	if n.Kind != yaml.MappingNode {
		return false
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == "type" {
			return true
		}
	}
	return false
}

// empty reports whether n is null or {}.
func (r *reader) empty(n *yaml.Node) bool {
	v := r.value(n)
	return v.Kind == yaml.ScalarNode && v.ShortTag() == "!!null" || v.Kind == yaml.MappingNode && len(v.Content) == 0
}

// readV1 reads a definition of today's dialect: a list of steps, or a mapping with the list.
func (r *reader) readV1(n *yaml.Node) *draftDefinition {
	d := &draftDefinition{at: r.at(n)}
	if r.value(n).Kind == yaml.SequenceNode {
		d.run = r.run(n)
		return d
	}
	if r.empty(n) {
		r.fail(r.at(n).errorf("there are no steps; write run: and below it a list of them, such as - script: echo hello"))
	}
	for _, it := range r.mapping(n, "a job") {
		r.jobKey(d, it)
	}
	return d
}

// jobKey reads one key of a definition of today's dialect.
func (r *reader) jobKey(d *draftDefinition, it item) {
	switch key := it.key.text; {
	case key == "run":
		d.run = r.run(it.value)
	case key == "exec":
		d.exec = r.exec(it.value)
	case key == "env":
		d.env = r.env(it.value)
	case key == "outputs":
		d.outputs = r.namedValues(it.value, "outputs")
	case key == "delegate":
		d.delegate = r.word(it.value, "delegate")
	case key == "spec":
		r.fail(it.key.at.errorf("spec stands in a document of its own; write --- on a line between it and the rest"))
	case key == "type" || key == "steps":
		r.fail(it.key.at.errorf("%s belongs to the definition of a step, after its spec and a line ---; write the steps "+
			"as run", key))
	case slices.Contains(workDirs, key):
		r.fail(it.key.at.errorf("%s belongs to exec; the steps of run each have their own", key))
	case slices.Contains(stepKeys, key):
		r.fail(it.key.at.errorf("%s belongs to a step, and steps stand in a list: write - before it", key))
	default:
		r.refuse(unknown(it.key, "a job", jobKeys))
	}
}

// readV0 reads a definition of the blueprint's dialect.
func (r *reader) readV0(n *yaml.Node) *draftDefinition {
	d := &draftDefinition{at: r.at(n), v0: true}
	var kind word
	r.each(r.mapping(n, "a definition"), "a definition with a type", definitionV0, func(it item) {
		switch it.key.text {
		case "type":
			kind = r.word(it.value, "type")
		case "exec":
			d.exec = r.exec(it.value)
		case "steps":
			d.run = r.run(it.value)
		case "env":
			d.env = r.env(it.value)
		}
	})
	if r.err == nil {
		r.checkType(d, kind)
	}
	return d
}

// checkType checks that a definition of the blueprint's dialect has the part that its type names, and no other part.
func (r *reader) checkType(d *draftDefinition, kind word) {
	switch {
	case !slices.Contains(definitionType, kind.text):
		r.fail(kind.at.errorf("type is exec or steps"))
	case kind.text == "exec" && d.exec == nil:
		r.fail(d.at.errorf("the definition has the type exec and no exec; write exec: and below it the command"))
	case kind.text == "exec" && d.run != nil:
		r.fail(d.run.at.errorf("the definition has the type exec, and steps; it has one of them"))
	case kind.text == "steps" && d.run == nil:
		r.fail(d.at.errorf("the definition has the type steps and no steps; write steps: and below it a list of them"))
	case kind.text == "steps" && d.exec != nil:
		r.fail(d.exec.at.errorf("the definition has the type steps, and exec; it has one of them"))
	}
}

// run reads a list of steps.
func (r *reader) run(n *yaml.Node) *draftRun {
	defer r.leave()
	r.enter(n)
	nodes := r.list(n, "run")
	run := &draftRun{at: r.at(n)}
	if r.steps += len(nodes); r.steps > MaxSteps { // before the first of them uses memory
		r.fail(r.at(n).errorf("%d steps are too many, at most %d are allowed", r.steps, MaxSteps))
		return run
	}
	run.steps = make([]draft, len(nodes))
	for i, node := range nodes {
		run.steps[i].at = r.at(node)
		for _, it := range r.mapping(node, "a step") {
			r.stepKey(&run.steps[i], it)
		}
	}
	return run
}

// stepKey reads one key of a step.
func (r *reader) stepKey(d *draft, it item) {
	key := it.key.text
	if slices.Contains(ways, key) {
		d.ways = append(d.ways, it.key)
	}
	switch key {
	case "name":
		d.name = r.word(it.value, "name")
	case "when":
		d.when = r.word(it.value, "when")
	case "if":
		d.condition = r.condition(it.value)
	case "timeout":
		d.timeout = r.word(it.value, "timeout")
	case "script":
		d.script = r.word(it.value, "script")
	case "exec":
		d.exec = r.exec(it.value)
	case "run":
		d.run = r.run(it.value)
	case "step", "func":
		d.ref = r.reference(it.value, key)
	case "action":
		d.ref = &draftReference{at: r.at(it.value), action: true, text: r.word(it.value, "action")}
	case "inputs":
		d.inputsAt = it.key.at
		d.inputs = r.namedValues(it.value, "inputs")
	case "env":
		d.env = r.env(it.value)
	default:
		if slices.Contains(workDirs, key) {
			r.fail(it.key.at.errorf("%s belongs to exec", key))
		}
		r.refuse(unknown(it.key, "a step", stepKeys))
	}
}

// condition reads the value of if: an expression, true or false.
func (r *reader) condition(n *yaml.Node) word {
	if v := r.value(n); v.Kind == yaml.ScalarNode && v.ShortTag() == "!!bool" {
		return word{at: r.at(n), text: strings.ToLower(v.Value), given: true}
	}
	return r.word(n, "if")
}

// reference reads a reference: a text, or one of the long forms.
func (r *reader) reference(n *yaml.Node, key string) *draftReference {
	ref := &draftReference{at: r.at(n)}
	if r.value(n).Kind != yaml.MappingNode {
		ref.text = r.word(n, key)
		return ref
	}
	ref.long = map[string][]pair{}
	defer r.strictly()()
	r.each(r.mapping(n, key), key, longForms, func(it item) {
		ref.long[it.key.text] = r.longForm(it.value, it.key.text)
	})
	return ref
}

// strictly makes unknown keys mistakes until end is called: an unknown part of a reference may decide which code runs.
func (r *reader) strictly() (end func()) {
	tolerant := r.tolerant
	r.tolerant = false
	return func() { r.tolerant = tolerant }
}

// longForm reads the parts of a reference of the form git, zip or oci.
func (r *reader) longForm(n *yaml.Node, form string) []pair {
	var parts []pair
	r.each(r.mapping(n, form), form, longKeys[form], func(it item) {
		value := r.word(it.value, it.key.text)
		if value.text == "" {
			r.fail(value.at.errorf("%s is empty", it.key.text))
		}
		parts = append(parts, pair{it.key, value})
	})
	for _, key := range longRequired[form] {
		if !slices.ContainsFunc(parts, func(p pair) bool { return p.key.text == key }) {
			r.fail(r.at(n).errorf("%s has no %s", form, key))
		}
	}
	return parts
}

func (r *reader) exec(n *yaml.Node) *draftExec {
	e := &draftExec{at: r.at(n), commandAt: r.at(n)}
	for _, it := range r.mapping(n, "exec") {
		switch key := it.key.text; {
		case key == "command":
			e.commandAt = r.at(it.value)
			e.command = r.words(it.value, "command")
		case key == "timeout":
			e.timeout = r.word(it.value, "timeout")
		case slices.Contains(workDirs, key):
			if e.workDir.given {
				r.fail(it.key.at.errorf("the directory is given twice, the second time as %s; write work_dir once", key))
			}
			e.workDir = r.word(it.value, key)
		default:
			r.refuse(unknown(it.key, "exec", execKeys))
		}
	}
	return e
}

func (r *reader) words(n *yaml.Node, label string) []word {
	list := r.list(n, label)
	all := make([]word, len(list))
	for i, n := range list {
		all[i] = r.word(n, "an argument of "+label)
	}
	return all
}

func (r *reader) env(n *yaml.Node) []pair {
	items := r.optional(n, "env")
	all := make([]pair, len(items))
	for i, it := range items {
		all[i] = pair{it.key, r.word(it.value, "the value of"+Quote(it.key.text))}
	}
	return all
}

// namedValues reads a mapping of values of any type.
func (r *reader) namedValues(n *yaml.Node, label string) []namedValue {
	items := r.optional(n, label)
	all := make([]namedValue, len(items))
	for i, it := range items {
		all[i] = namedValue{it.key, r.anyValue(it.value, "the value of"+Quote(it.key.text))}
	}
	return all
}
