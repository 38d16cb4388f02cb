package lang

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/yamltree"
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
		r.Failf(nil, "the text is empty; write %s", example)
		return nil
	case 1:
		r.Failf(docs[0], "a step has two documents, its spec and its command or steps; "+
			"write --- on a line between them")
		return nil
	case 3:
		r.Failf(docs[2], "there are at most two documents, a spec and a definition; this is a third")
		return nil
	}
	v0 := isV0(docs[1])
	spec := r.specDocument(docs[0], v0)
	read := r.readV1
	if v0 {
		read = r.readV0
	}
	d := read(docs[1])
	d.spec, d.named = spec, !v0 && r.Value(docs[1]).Kind == yaml.MappingNode
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
	v := r.Value(n)
	return yamltree.IsNull(v) || v.Kind == yaml.MappingNode && len(v.Content) == 0
}

// readV1 reads a definition of today's dialect: a list of steps, or a mapping with the list.
func (r *reader) readV1(n *yaml.Node) *draftDefinition {
	d := &draftDefinition{at: r.at(n)}
	if r.Value(n).Kind == yaml.SequenceNode {
		d.run = r.run(n)
		return d
	}
	if r.empty(n) {
		r.Failf(n, "there are no steps; write run: and below it a list of them, such as - script: echo hello")
	}
	for _, it := range r.Mapping(n, "a job") {
		r.jobKey(d, it)
	}
	return d
}

// jobKey reads one key of a definition of today's dialect.
func (r *reader) jobKey(d *draftDefinition, it yamltree.Entry) {
	switch key := it.Key; {
	case key == "run":
		d.run = r.run(it.Value)
	case key == "exec":
		d.exec = r.exec(it.Value)
	case key == "env":
		d.env = r.env(it.Value)
	case key == "outputs":
		d.outputs = r.namedValues(it.Value, "outputs")
	case key == "delegate":
		d.delegate = r.word(it.Value, "delegate")
	case key == "spec":
		r.Failf(it.At, "spec stands in a document of its own; write --- on a line between it and the rest")
	case key == "type" || key == "steps":
		r.Failf(it.At, "%s belongs to the definition of a step, after its spec and a line ---; write the steps "+
			"as run", key)
	case slices.Contains(workDirs, key):
		r.Failf(it.At, "%s belongs to exec; the steps of run each have their own", key)
	case slices.Contains(stepKeys, key):
		r.Failf(it.At, "%s belongs to a step, and steps stand in a list: write - before it", key)
	default:
		r.refuse(r.unknown(it, "a job", jobKeys))
	}
}

// readV0 reads a definition of the blueprint's dialect.
func (r *reader) readV0(n *yaml.Node) *draftDefinition {
	d := &draftDefinition{at: r.at(n), v0: true}
	var kind word
	r.each(r.Mapping(n, "a definition"), "a definition with a type", definitionV0, func(it yamltree.Entry) {
		switch it.Key {
		case "type":
			kind = r.word(it.Value, "type")
		case "exec":
			d.exec = r.exec(it.Value)
		case "steps":
			d.run = r.run(it.Value)
		case "env":
			d.env = r.env(it.Value)
		}
	})
	if r.Err == nil {
		r.checkType(d, kind)
	}
	return d
}

// checkType checks that a definition of the blueprint's dialect has the part that its type names, and no other part.
func (r *reader) checkType(d *draftDefinition, kind word) {
	switch {
	case !slices.Contains(definitionType, kind.text):
		r.Fail(kind.at.errorf("type is exec or steps"))
	case kind.text == "exec" && d.exec == nil:
		r.Fail(d.at.errorf("the definition has the type exec and no exec; write exec: and below it the command"))
	case kind.text == "exec" && d.run != nil:
		r.Fail(d.run.at.errorf("the definition has the type exec, and steps; it has one of them"))
	case kind.text == "steps" && d.run == nil:
		r.Fail(d.at.errorf("the definition has the type steps and no steps; write steps: and below it a list of them"))
	case kind.text == "steps" && d.exec != nil:
		r.Fail(d.exec.at.errorf("the definition has the type steps, and exec; it has one of them"))
	}
}

// run reads a list of steps.
func (r *reader) run(n *yaml.Node) *draftRun {
	defer r.Leave()
	r.Enter(n)
	nodes := r.List(n, "run")
	run := &draftRun{at: r.at(n)}
	if r.steps += len(nodes); r.steps > MaxSteps { // before the first of them uses memory
		r.Failf(n, "%d steps are too many, at most %d are allowed", r.steps, MaxSteps)
		return run
	}
	run.steps = make([]draft, len(nodes))
	for i, node := range nodes {
		run.steps[i].at = r.at(node)
		for _, it := range r.Mapping(node, "a step") {
			r.stepKey(&run.steps[i], it)
		}
	}
	return run
}

// stepKey reads one key of a step.
func (r *reader) stepKey(d *draft, it yamltree.Entry) {
	key := it.Key
	if slices.Contains(ways, key) {
		d.ways = append(d.ways, r.key(it))
	}
	switch key {
	case "name":
		d.name = r.word(it.Value, "name")
	case "when":
		d.when = r.word(it.Value, "when")
	case "if":
		d.condition = r.condition(it.Value)
	case "timeout":
		d.timeout = r.word(it.Value, "timeout")
	case "script":
		d.script = r.word(it.Value, "script")
	case "exec":
		d.exec = r.exec(it.Value)
	case "run":
		d.run = r.run(it.Value)
	case "step", "func":
		d.ref = r.reference(it.Value, key)
	case "action":
		d.ref = &draftReference{at: r.at(it.Value), action: true, text: r.word(it.Value, "action")}
	case "inputs":
		d.inputsAt = r.at(it.At)
		d.inputs = r.namedValues(it.Value, "inputs")
	case "env":
		d.env = r.env(it.Value)
	default:
		if slices.Contains(workDirs, key) {
			r.Failf(it.At, "%s belongs to exec", key)
		}
		r.refuse(r.unknown(it, "a step", stepKeys))
	}
}

// condition reads the value of if: an expression, true or false.
func (r *reader) condition(n *yaml.Node) word {
	if v := r.Value(n); v.Kind == yaml.ScalarNode && v.ShortTag() == "!!bool" {
		return word{at: r.at(n), text: strings.ToLower(v.Value), given: true}
	}
	return r.word(n, "if")
}

// reference reads a reference: a text, or one of the long forms.
func (r *reader) reference(n *yaml.Node, key string) *draftReference {
	ref := &draftReference{at: r.at(n)}
	if r.Value(n).Kind != yaml.MappingNode {
		ref.text = r.word(n, key)
		return ref
	}
	ref.long = map[string][]pair{}
	defer r.strictly()()
	r.each(r.Mapping(n, key), key, longForms, func(it yamltree.Entry) {
		ref.long[it.Key] = r.longForm(it.Value, it.Key)
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
	r.each(r.Mapping(n, form), form, longKeys[form], func(it yamltree.Entry) {
		value := r.word(it.Value, it.Key)
		if value.text == "" {
			r.Failf(it.Value, "%s is empty", it.Key)
		}
		parts = append(parts, pair{r.key(it), value})
	})
	for _, key := range longRequired[form] {
		if !slices.ContainsFunc(parts, func(p pair) bool { return p.key.text == key }) {
			r.Failf(n, "%s has no %s", form, key)
		}
	}
	return parts
}

func (r *reader) exec(n *yaml.Node) *draftExec {
	e := &draftExec{at: r.at(n), commandAt: r.at(n)}
	for _, it := range r.Mapping(n, "exec") {
		switch key := it.Key; {
		case key == "command":
			e.commandAt = r.at(it.Value)
			e.command = r.words(it.Value, "command")
		case key == "timeout":
			e.timeout = r.word(it.Value, "timeout")
		case slices.Contains(workDirs, key):
			if e.workDir.given {
				r.Failf(it.At, "the directory is given twice, the second time as %s; write work_dir once", key)
			}
			e.workDir = r.word(it.Value, key)
		default:
			r.refuse(r.unknown(it, "exec", execKeys))
		}
	}
	return e
}

func (r *reader) words(n *yaml.Node, label string) []word {
	list := r.List(n, label)
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
		all[i] = pair{r.key(it), r.word(it.Value, "the value of"+Quote(it.Key))}
	}
	return all
}

// namedValues reads a mapping of values of any type.
func (r *reader) namedValues(n *yaml.Node, label string) []namedValue {
	items := r.optional(n, label)
	all := make([]namedValue, len(items))
	for i, it := range items {
		all[i] = namedValue{r.key(it), r.anyValue(it.Value, "the value of"+Quote(it.Key))}
	}
	return all
}
