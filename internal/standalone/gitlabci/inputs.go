package gitlabci

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/remote/step/lang"
)

// inputKeys are the keys of an input in the spec of a file.
var inputKeys = []string{"type", "default", "description", "options", "regex", "rules"}

// inputTags has the YAML tags of the values that each type of input accepts. A list has no tag of its own.
var inputTags = map[string][]string{
	"string": {tagText}, "number": {tagInt, tagFloat}, "boolean": {tagBool}, "array": nil,
}

// maxFunctions bounds the functions in one $[[ ]], as in GitLab.
const maxFunctions = 3

// inputs are the inputs of one file.
type inputs struct {
	*includer
	declared map[string]bool
	values   map[string]*yaml.Node
}

// fill replaces $[[ inputs.NAME ]] in the content top of a file. header is its spec, or nil. given has the inputs of
// the include, or nil.
func (in *includer) fill(header, top, given *yaml.Node) *yaml.Node {
	t, spec := in.file.tree, find(header, "spec")
	declared := find(spec, "inputs")
	i := &inputs{includer: in, declared: map[string]bool{}, values: map[string]*yaml.Node{}}
	outermost := len(in.stack) == 1
	switch {
	case spec == nil && !isNull(given):
		return t.failf(given, "include: the file has no spec, and so takes no inputs")
	case spec == nil && outermost && len(in.file.cfg.Inputs) > 0:
		return t.fail(t.Text.Errorf(nil, "the file has no spec, and so takes no inputs"))
	case spec == nil:
		return top
	case !isNull(spec) && spec.Kind != yaml.MappingNode:
		return t.failf(spec, "spec must be a mapping with inputs, not %s", describe(spec))
	case !isNull(declared) && declared.Kind != yaml.MappingNode:
		return t.failf(declared, "inputs must be a mapping (name: {default: value}), not %s", describe(declared))
	case !isNull(given) && given.Kind != yaml.MappingNode:
		return t.failf(given, "inputs must be a mapping (name: value), not %s", describe(given))
	}
	for key := range entries(spec) {
		if key.Value != "inputs" {
			in.file.notice("spec:" + key.Value)
		}
	}
	for key, about := range entries(declared) {
		i.declared[key.Value] = true
		i.declare(key, about, find(given, key.Value), outermost)
	}
	for key := range entries(given) {
		if !i.declared[key.Value] {
			t.failf(key, "include: the file has no input%s", lang.QuoteName(key.Value))
		}
	}
	if outermost {
		for _, name := range slices.Sorted(maps.Keys(in.file.cfg.Inputs)) {
			if !i.declared[name] {
				t.failf(spec, "the file has no input%s%s", lang.QuoteName(name),
					lang.Suggest(name, slices.Sorted(maps.Keys(i.declared)), ""))
			}
		}
	}
	return i.replace(top)
}

// declare determines the value of an input: the given value, or the default.
func (i *inputs) declare(key, about, given *yaml.Node, outermost bool) {
	t, name := i.file.tree, key.Value
	if !isNull(about) && about.Kind != yaml.MappingNode {
		t.failf(about, "an input must be a mapping, such as {default: value}, not %s", describe(about))
		return
	}
	kind := "string"
	t.checkKeys(about, "an input", inputKeys, "")
	if n := find(about, "type"); !isNull(n) {
		kind = n.Value
		if _, known := inputTags[kind]; !known {
			t.failf(n, "the type of an input is string, number, boolean or array")
		}
	}
	if text, ok := i.file.cfg.Inputs[name]; ok && outermost {
		given = i.fromText(key, kind, text)
	}
	if !isNull(find(about, "rules")) {
		i.file.notice("rules of the input " + name)
	}
	value := given
	if value == nil {
		value = find(about, "default")
	}
	switch {
	case t.Err != nil:
	case value == nil && outermost:
		i.file.missing = append(i.file.missing, key)
	case value == nil:
		t.failf(key, "the input%s has no default, and include gives it no value", lang.QuoteName(name))
	case !fits(value, kind):
		t.failf(value, "the input%s takes %s, not %s", lang.QuoteName(name), map[string]string{
			"string": "a text", "number": "a number", "boolean": "true or false", "array": "a list",
		}[kind], describe(value))
	default:
		t.warnOfValues(value)
		i.check(about, value, name)
		i.values[name] = value
	}
}

// fits reports whether a value has a type.
func fits(value *yaml.Node, kind string) bool {
	if kind == "array" {
		return value.Kind == yaml.SequenceNode
	}
	return value.Kind == yaml.ScalarNode && slices.Contains(inputTags[kind], value.ShortTag())
}

// fromText reads a value that the caller has given as a text.
func (i *inputs) fromText(at *yaml.Node, kind, text string) *yaml.Node {
	t := i.file.tree
	if kind == "string" {
		return t.text(at, text)
	}
	src, err := lang.Load("the input "+at.Value, []byte(text))
	if err != nil || len(src.Docs) != 1 {
		return t.failf(at, "the value that was given for the input%s cannot be read", lang.QuoteName(at.Value))
	}
	return t.expand(src, src.Docs[0])
}

// check checks a value against the options and the regex of its input.
func (i *inputs) check(about, value *yaml.Node, name string) {
	t := i.file.tree
	if options := find(about, "options"); !isNull(options) &&
		!slices.ContainsFunc(itemsOf(options), func(o *yaml.Node) bool { return o.Value == value.Value }) {
		t.failf(value, "the input%s has a value that is not one of its options", lang.QuoteName(name))
	}
	n := find(about, "regex")
	if isNull(n) {
		return
	}
	pattern, err := regexp.Compile(n.Value)
	if regex, rest, wrong := readRegex(n.Value); wrong == nil && rest == "" {
		pattern, err = regex, nil
	}
	switch {
	case err != nil:
		i.file.notice("regex of the input " + name) // Ruby's regexes can do more
	case !pattern.MatchString(value.Value):
		t.failf(value, "the input%s has a value that does not match its regex", lang.QuoteName(name))
	}
}

// replace replaces $[[ ]] in n, also in the keys of mappings.
func (i *inputs) replace(n *yaml.Node) *yaml.Node {
	t := i.file.tree
	if n.Kind == yaml.ScalarNode {
		if t.Err != nil || !strings.Contains(n.Value, "$[[") {
			return n
		}
		return i.scalar(n)
	}
	changed := false
	for at, child := range n.Content {
		n.Content[at] = i.replace(child)
		changed = changed || n.Content[at] != child && n.Kind == yaml.MappingNode && at%2 == 0
	}
	if changed {
		given := slices.Clone(n.Content)
		n.Content = n.Content[:0]
		at := map[string]int{}
		for pair := range slices.Chunk(given, 2) {
			key := pair[0]
			i, there := at[key.Value]
			switch {
			case key.Kind != yaml.ScalarNode:
				t.failf(key, "a key must be a text")
			case there:
				t.warnOfSecond(key)
				n.Content[i], n.Content[i+1] = key, pair[1]
				continue
			}
			at[key.Value] = len(n.Content)
			n.Content = append(n.Content, pair...)
		}
	}
	return n
}

// scalar replaces $[[ ]] in a text. If the whole text is one $[[ ]], the value keeps its type.
func (i *inputs) scalar(n *yaml.Node) *yaml.Node {
	t := i.file.tree
	var out strings.Builder
	rest := n.Value
	for {
		before, after, found := strings.Cut(rest, "$[[")
		inner, behind, closed := strings.Cut(after, "]]")
		if !found || !closed {
			out.WriteString(rest)
			filled := t.text(n, out.String())
			t.spend(filled)
			return filled
		}
		out.WriteString(before)
		value := i.block(n, inner)
		switch {
		case t.Err != nil:
			return n
		case value == nil: // it is not about inputs
			out.WriteString("$[[" + inner + "]]")
		case before == "" && behind == "" && out.Len() == 0 && value.Kind != yaml.ScalarNode:
			return t.duplicate(value)
		case before == "" && behind == "" && out.Len() == 0 && value.ShortTag() != "!!str":
			c := t.made(n, yaml.ScalarNode)
			c.Tag, c.Value = value.ShortTag(), value.Value
			return c
		case value.Kind != yaml.ScalarNode:
			return t.failf(n, "a list stands alone: write - $[[ %.80s ]] or key: $[[ %.80s ]]", strings.TrimSpace(inner),
				strings.TrimSpace(inner))
		default:
			out.WriteString(value.Value)
		}
		if out.Len() > lang.MaxText {
			return t.failf(n, "the inputs make this text too long")
		}
		rest = behind
	}
}

// block returns the value of the text between $[[ and ]]: the value of an input, after functions. It returns nil if the
// text is not about inputs.
func (i *inputs) block(at *yaml.Node, text string) *yaml.Node {
	t := i.file.tree
	parts := strings.Split(text, "|")
	name, ok := strings.CutPrefix(strings.TrimSpace(parts[0]), "inputs.")
	if !ok {
		i.file.notice("$[[ " + strings.TrimSpace(parts[0]) + " ]]")
		return nil
	}
	value := i.values[name]
	switch {
	case !i.declared[name]:
		return t.failf(at, "the spec of the file has no input%s%s", lang.QuoteName(name),
			lang.Suggest(name, slices.Sorted(maps.Keys(i.declared)), ""))
	case value == nil: // a missing value is reported when a job is compiled
		return nil
	case len(parts) > 1+maxFunctions:
		return t.failf(at, "$[[ ]] has more than %d functions", maxFunctions)
	case !t.spend(value):
		return value
	}
	for _, function := range parts[1:] {
		if value.Kind != yaml.ScalarNode || value.ShortTag() != "!!str" {
			return t.failf(at, "the functions in $[[ ]] are for texts; the input%s is %s", lang.QuoteName(name), describe(value))
		}
		if value = i.apply(at, value, strings.TrimSpace(function)); t.Err != nil {
			return value
		}
	}
	return value
}

// truncateArgs matches truncate with its arguments.
var truncateArgs = regexp.MustCompile(`^truncate\(\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\)$`)

// apply applies a function to a text.
func (i *inputs) apply(at, value *yaml.Node, function string) *yaml.Node {
	t := i.file.tree
	if args := truncateArgs.FindStringSubmatch(function); args != nil {
		runes := []rune(value.Value)
		from, _ := strconv.Atoi(args[1]) // the pattern matches only digits
		length, _ := strconv.Atoi(args[2])
		from = min(from, len(runes))
		return t.text(at, string(runes[from:min(from+length, len(runes))]))
	}
	switch function {
	case "expand_vars":
		return t.text(at, i.known().expand(variable{at: at, value: value.Value}))
	case "posix_escape":
		return t.text(at, posixEscape(value.Value))
	default:
		return t.failf(at, "unknown function%s in $[[ ]]; there are expand_vars, posix_escape and truncate(FROM,LENGTH)",
			lang.Quote(function))
	}
}

// posixEscape quotes a text for a shell, like Ruby's Shellwords.
func posixEscape(text string) string {
	if text == "" {
		return "''"
	}
	var b strings.Builder
	for _, c := range text {
		switch {
		case c == '\n':
			b.WriteString("'\n'")
			continue
		case c >= 0x80, 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9',
			strings.ContainsRune("_-.,:+/@", c):
		default:
			b.WriteByte('\\')
		}
		b.WriteRune(c)
	}
	return b.String()
}
