package steps

import "go.yaml.in/yaml/v4"

var (
	jobKeys  = []string{"run", "exec", "env"}
	stepKeys = []string{"name", "script", "exec", "env", "when"}
	execKeys = []string{"command", "work_dir"}

	// What the language has beyond this version. The keys are not unknown: their errors say so.
	laterJobKeys  = map[string]bool{"type": true, "steps": true, "outputs": true, "delegate": true}
	laterStepKeys = map[string]bool{"step": true, "func": true, "action": true, "inputs": true}
)

// job reads a whole text.
func (r *reader) job(docs []*yaml.Node) (*Definition, error) {
	switch len(docs) {
	case 0:
		return nil, &Error{Where: r.text.name, Message: "the text is empty; write a list of steps, such as - script: echo hello"}
	case 1:
		return r.document(docs[0])
	case 2:
		if err := r.spec(docs[0]); err != nil {
			return nil, err
		}
		return r.document(docs[1])
	default:
		return nil, r.at(docs[2]).errorf("a job has at most two documents, its spec and its steps; this is a third")
	}
}

// spec reads the first of two documents. A job takes no inputs, so it is empty in one way or another.
func (r *reader) spec(n *yaml.Node) error {
	empty, err := r.empty(n)
	if err != nil || empty {
		return err
	}
	items, err := r.mapping(n, "the first of two documents, the spec,")
	if err != nil {
		return err
	}
	for _, it := range items {
		if it.key.text != "spec" {
			return it.key.at.errorf("unknown key%s; the first of two documents holds spec, the second run", quote(it.key.text))
		}
		empty, err := r.empty(it.value)
		switch {
		case err != nil:
			return err
		case !empty:
			return it.key.at.errorf("inputs and outputs in a job's spec are not supported by this version; leave it empty")
		}
	}
	return nil
}

// empty reports whether n says nothing: null or {}.
func (r *reader) empty(n *yaml.Node) (bool, error) {
	v, err := r.value(n)
	if err != nil {
		return false, err
	}
	return v.Kind == yaml.ScalarNode && v.ShortTag() == "!!null" || v.Kind == yaml.MappingNode && len(v.Content) == 0, nil
}

// document reads the document that holds the steps: their list, or a mapping with it.
func (r *reader) document(n *yaml.Node) (*Definition, error) {
	v, err := r.value(n)
	if err != nil {
		return nil, err
	}
	if v.Kind == yaml.SequenceNode {
		drafts, err := r.steps(n)
		if err != nil {
			return nil, err
		}
		return compile(r.at(n), drafts, nil)
	}
	empty, err := r.empty(n)
	if err != nil {
		return nil, err
	}
	if empty {
		return nil, r.at(n).errorf("there are no steps; write a list of them, such as - script: echo hello")
	}
	items, err := r.mapping(n, "a job")
	if err != nil {
		return nil, err
	}
	return r.mappedJob(n, items)
}

// mappedJob reads a job that is a mapping.
func (r *reader) mappedJob(n *yaml.Node, items []item) (*Definition, error) {
	var run *yaml.Node
	var exec *draftExec
	var env []pair
	var err error
	for _, it := range items {
		switch key := it.key.text; {
		case key == "run":
			run = it.value
		case key == "exec":
			exec, err = r.exec(it.value)
		case key == "env":
			env, err = r.env(it.value)
		case key == "spec":
			err = it.key.at.errorf("spec stands in a document of its own; write --- on a line between it and the rest")
		case laterJobKeys[key]:
			err = it.key.at.errorf("%s is not supported by this version; write the steps as run", key)
		case key == "script" || key == "name" || laterStepKeys[key]:
			err = it.key.at.errorf("%s belongs to a step, and steps stand in a list: write - before it", key)
		default:
			err = unknown(it.key, "a job", jobKeys)
		}
		if err != nil {
			return nil, err
		}
	}
	switch {
	case run != nil && exec != nil:
		return nil, exec.at.errorf("the job has both run and exec; a job has one of them")
	case exec != nil:
		return compile(r.at(n), []draft{{at: exec.at, exec: exec}}, env)
	case run == nil:
		return nil, r.at(n).errorf("there are no steps; write run: and below it a list of them")
	}
	drafts, err := r.steps(run)
	if err != nil {
		return nil, err
	}
	return compile(r.at(run), drafts, env)
}

// steps reads a list of steps.
func (r *reader) steps(n *yaml.Node) ([]draft, error) {
	nodes, err := r.list(n, "run")
	if err != nil {
		return nil, err
	}
	if len(nodes) > MaxSteps { // before any of them costs something
		return nil, r.at(n).errorf("%d steps are too many, at most %d are allowed", len(nodes), MaxSteps)
	}
	drafts := make([]draft, 0, len(nodes))
	for _, node := range nodes {
		d, err := r.step(node)
		if err != nil {
			return nil, err
		}
		drafts = append(drafts, d)
	}
	return drafts, nil
}

// step reads one step.
func (r *reader) step(n *yaml.Node) (draft, error) {
	d := draft{at: r.at(n)}
	items, err := r.mapping(n, "a step")
	if err != nil {
		return d, err
	}
	for _, it := range items {
		switch key := it.key.text; {
		case key == "name":
			d.name, err = r.word(it.value, "name")
		case key == "when":
			d.when, err = r.word(it.value, "when")
		case key == "script":
			d.script, err = r.word(it.value, "script")
		case key == "exec":
			d.exec, err = r.exec(it.value)
		case key == "env":
			d.env, err = r.env(it.value)
		case laterStepKeys[key]:
			d.other = append(d.other, it.key)
		default:
			err = unknown(it.key, "a step", stepKeys)
		}
		if err != nil {
			return d, err
		}
	}
	return d, nil
}

func (r *reader) exec(n *yaml.Node) (*draftExec, error) {
	items, err := r.mapping(n, "exec")
	if err != nil {
		return nil, err
	}
	e := &draftExec{at: r.at(n), commandAt: r.at(n)}
	for _, it := range items {
		switch it.key.text {
		case "command":
			e.commandAt = r.at(it.value)
			e.command, err = r.words(it.value, "command")
		case "work_dir":
			e.workDir, err = r.word(it.value, "work_dir")
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
	words := make([]word, 0, len(nodes))
	for _, node := range nodes {
		w, err := r.word(node, "an argument of "+what)
		if err != nil {
			return nil, err
		}
		words = append(words, w)
	}
	return words, nil
}

func (r *reader) env(n *yaml.Node) ([]pair, error) {
	items, err := r.mapping(n, "env")
	if err != nil {
		return nil, err
	}
	pairs := make([]pair, 0, len(items))
	for _, it := range items {
		value, err := r.word(it.value, "the value of"+quote(it.key.text))
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, pair{it.key, value})
	}
	return pairs, nil
}
