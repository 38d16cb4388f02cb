package gitlabci

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/remote/step/lang"
)

// Variable is a variable of a job.
type Variable struct {
	Name, Value string
}

// variable is a variable before expansion.
type variable struct {
	at     *yaml.Node
	name   string
	value  string
	expand bool // replace $NAME by the value of another variable
}

// variableKeys are the keys of a variable in the form of a mapping.
var variableKeys = []string{"value", "description", "options", "expand"}

// variables adds the variables in the mapping n to list. They replace those of the same name.
func (f *File) variables(list []variable, n *yaml.Node) []variable {
	if isNull(n) {
		return list
	}
	if n.Kind != yaml.MappingNode {
		f.tree.failf(n, "variables must be a mapping (NAME: value), not %s", describe(n))
		return list
	}
	for key, value := range entries(n) {
		list = setVariable(list, f.variable(key, value))
	}
	return list
}

func setVariable(list []variable, v variable) []variable {
	i := slices.IndexFunc(list, func(other variable) bool { return other.name == v.name })
	if i < 0 {
		return append(list, v)
	}
	list = slices.Clone(list)
	list[i] = v
	return list
}

// variable reads one variable.
func (f *File) variable(key, value *yaml.Node) variable {
	t := f.tree
	v := variable{at: value, name: key.Value, expand: true}
	if !lang.IsName(v.name) {
		t.failf(key, "the variable name%s is not valid; use letters, digits and _, not a digit first", lang.Quote(v.name))
	}
	t.checkName(key, "the name of a variable")
	if value.Kind == yaml.MappingNode {
		t.checkKeys(value, "a variable", variableKeys, "")
		if e := find(value, "expand"); !isNull(e) {
			if e.ShortTag() != tagBool {
				t.failf(e, "expand is true or false, without quotes")
			}
			v.expand = e.Value != "false"
		}
		options := find(value, "options")
		if value = find(value, "value"); value == nil {
			return v
		}
		f.checkOptions(v.name, value, options)
	}
	switch {
	case value.Kind != yaml.ScalarNode:
		t.failf(value, "the value of%s must be a text or a number, not %s", lang.Quote(v.name), describe(value))
	case strings.Contains(value.Value, projectDir):
		t.failf(value, "the value of%s has a NUL byte", lang.Quote(v.name))
	case !isNull(value):
		v.value = value.Value
	}
	t.warnOfValues(value)
	return v
}

// checkOptions checks that the options of the variable name are texts, and that its value is one of them.
func (f *File) checkOptions(name string, value, options *yaml.Node) {
	if isNull(options) {
		return
	}
	for _, option := range itemsOf(options) {
		if option.ShortTag() != tagText {
			f.tree.failf(option, "an option of%s must be a text, not %s", lang.Quote(name), describe(option))
		}
	}
	if !slices.ContainsFunc(itemsOf(options), func(o *yaml.Node) bool {
		return o.Value == value.Value && value.ShortTag() == tagText
	}) {
		f.tree.failf(value, "the value of%s must be one of its options, a text", lang.Quote(name))
	}
}

// projectDir stands for the directory of the project in the values of variables, if that is not known before the job
// runs. No value in a file can contain it.
const projectDir = "\x00"

// inProjectDir turns value into a template for a value of steps.
func inProjectDir(value string) string {
	parts := strings.Split(value, projectDir)
	for i := range parts {
		parts[i] = lang.Escape(parts[i])
	}
	return strings.Join(parts, "${{ work_dir }}")
}

// maxValue bounds the value of a variable after expansion, in bytes. Linux does not pass longer values to a program.
const maxValue = lang.MaxArg

// expander expands the values of variables: $NAME and ${NAME} become the value of another variable, $$ becomes $. A
// name stays unchanged if it is not a variable of the job, or refers to itself.
type expander struct {
	tree *tree
	vars map[string]variable
	done map[string]string
	busy map[string]bool
	size int // of all values
}

func (f *File) expander(list []variable) *expander {
	e := &expander{tree: f.tree, vars: map[string]variable{}, done: map[string]string{}, busy: map[string]bool{}}
	for _, v := range list {
		e.vars[v.name] = v
	}
	return e
}

// lookUp returns the expanded value of the variable name, and whether the variable exists.
func (e *expander) lookUp(name string) (string, bool) {
	if _, known := e.vars[name]; !known {
		return "", false
	}
	return e.value(name), true
}

// value returns the expanded value of the variable name, which must exist.
func (e *expander) value(name string) string {
	if value, ok := e.done[name]; ok || e.tree.Err != nil {
		return value
	}
	v := e.vars[name]
	value := v.value
	if v.expand && strings.Contains(value, "$") {
		e.busy[name] = true
		value = e.expand(v)
		e.busy[name] = false
	}
	if e.size += len(name) + 1 + len(value); e.size > lang.MaxEnv {
		e.tree.failf(v.at, "the variables have more than %d bytes in all; put some into files", lang.MaxEnv)
	}
	e.done[name] = value
	return value
}

func (e *expander) expand(v variable) string {
	var out strings.Builder
	rest := v.value
	for {
		before, after, found := strings.Cut(rest, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		name, size := nameIn(after)
		_, known := e.vars[name]
		switch {
		case strings.HasPrefix(after, "$"):
			out.WriteString("$")
			size = 1
		case name != "" && known && !e.busy[name]:
			out.WriteString(e.value(name))
		default:
			out.WriteString("$" + after[:size])
		}
		if out.Len() > maxValue {
			e.tree.failf(v.at, "the value of%s has more than %d bytes when the variables in it are replaced",
				lang.Quote(v.name), maxValue)
			return ""
		}
		rest = after[size:]
	}
}

// nameIn returns the name at the beginning of text, which follows a $, and its length with braces.
func nameIn(text string) (name string, size int) {
	if inner, ok := strings.CutPrefix(text, "{"); ok {
		name, _, closed := strings.Cut(inner, "}")
		if closed && lang.IsName(name) {
			return name, len(name) + 2
		}
		return "", 0
	}
	n := 0
	for n < len(text) && lang.IsName(text[:n+1]) {
		n++
	}
	return text[:n], n
}
