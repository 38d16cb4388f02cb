package lang

import (
	"slices"
	"sort"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Part is a part of a definition, or of a step in a list, that can have expressions.
type Part string

// The parts.
const (
	PartCondition Part = "if"
	PartEnv       Part = "env"
	PartInputs    Part = "inputs" // and the script
	PartOutputs   Part = "outputs"
	PartReference Part = "step"
	PartExec      Part = "exec"
)

// Locator finds the places of expressions in the text from which a definition was compiled. A definition has no places,
// because equal steps are equal definitions, wherever they stand. A Locator reads the text again for each place, so
// only an expression that fails costs time. A nil Locator finds nothing.
type Locator struct{ read func() *draftDefinition }

// NewLocator returns the Locator of data, a text that [Parse], [ParseStep] or one of their variants accepts. Places
// begin with name.
func NewLocator(name string, data []byte) *Locator {
	return &Locator{func() *draftDefinition {
		d, err := parseDraft(name, data, func(r *reader, docs []*yaml.Node) *draftDefinition {
			r.tolerant = true
			return r.job(docs) // also reads the file of a step
		})
		if err != nil {
			return nil
		}
		return d
	}}
}

// NewNodeLocator returns the Locator of a list of steps that [FromNode] accepts.
func NewNodeLocator(n *yaml.Node, origin func(*yaml.Node) *Source) *Locator {
	return &Locator{func() *draftDefinition {
		d, _ := fromNode(n, origin) // FromNode has accepted it
		return d
	}}
}

// Locate returns the place of the byte at offset of template, as "file:line:column", or "" if it is unknown. template
// is a text of part, which belongs to a definition or, if steps is not empty, to a step: steps are the names of the
// steps that lead to it, its own name last. If the part has equal texts, the first one that is evaluated counts.
func (l *Locator) Locate(steps []string, part Part, template string, offset int) string {
	if l == nil {
		return ""
	}
	d := l.read()
	if d == nil {
		return ""
	}
	at, words := d.part(part)
	if d.run != nil && len(steps) > 0 { // a job that is a command is its own only step
		step := d.run.find(steps)
		if step == nil {
			return ""
		}
		at, words = step.at, step.part(part)
	}
	for _, w := range words {
		if start := strings.Index(w.text, template); start == 0 && len(w.text) == len(template) ||
			start >= 0 && part == PartCondition { // its brackets are not in the template
			return w.at.errorIn(w.text, start+offset, "").Where
		}
	}
	// The lines of a script can be a list.
	start := 1 + strings.LastIndexByte(template[:offset], '\n')
	line, _, _ := strings.Cut(template[start:], "\n")
	for _, w := range words {
		if w.text == line {
			return w.at.errorIn(w.text, offset-start, "").Where
		}
	}
	return at.errorf("").Where
}

// part returns the place of the definition, and its texts in part, in the order of their evaluation.
func (d *draftDefinition) part(part Part) (place, []word) {
	switch part { //nolint:exhaustive // the other parts belong to steps
	case PartEnv:
		return d.at, envWords(d.env)
	case PartOutputs:
		return d.at, valueWords(d.outputs)
	case PartExec:
		return d.at, d.exec.words()
	default:
		return d.at, nil
	}
}

// part returns the texts of the step in part, in the order of their evaluation.
func (d *draft) part(part Part) []word {
	switch part { //nolint:exhaustive // the other parts belong to definitions
	case PartCondition:
		return []word{d.condition}
	case PartEnv:
		return envWords(d.env)
	case PartInputs:
		return append(valueWords(d.inputs), d.script)
	case PartReference:
		return d.ref.words()
	case PartExec:
		return d.exec.words()
	default:
		return nil
	}
}

// find returns the step with the names of path, each in the list of the one before, or nil.
func (run *draftRun) find(path []string) (found *draft) {
	for _, name := range path {
		found = nil
		for i := range run.steps {
			if run.steps[i].stepName(i) == name {
				found = &run.steps[i]
			}
		}
		if found == nil || found.run == nil {
			return found
		}
		run = found.run
	}
	return found
}

func (e *draftExec) words() []word {
	if e == nil {
		return nil
	}
	return append(slices.Clip(e.command), e.workDir)
}

func (ref *draftReference) words() []word {
	if ref == nil {
		return nil
	}
	words := []word{ref.text}
	for _, form := range longForms {
		for _, p := range ref.long[form] {
			words = append(words, p.value)
		}
	}
	return words
}

// Here and below not slices.SortFunc: that is compiled again for each type, which costs the VM's end 30 KB each.
func envWords(env []pair) (words []word) {
	env = slices.Clone(env)
	sort.Slice(env, func(i, j int) bool { return env[i].key.text < env[j].key.text })
	for _, p := range env {
		words = append(words, p.key, p.value)
	}
	return words
}

func valueWords(values []namedValue) (words []word) {
	values = slices.Clone(values)
	sort.Slice(values, func(i, j int) bool { return values[i].name.text < values[j].name.text })
	for _, v := range values {
		words = append(append(words, v.name), v.value.texts...)
	}
	return words
}
