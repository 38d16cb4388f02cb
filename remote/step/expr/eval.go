package expr

import (
	"maps"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/internal/spell"
)

// Scope has the values of names. An evaluation only reads it.
type Scope map[string]Value

// run is one evaluation.
type run struct {
	text  string // the parsed text
	scope Scope
	work  int // bytes read and written so far
}

func (r *run) errorAt(at int, format string, args ...any) *Error {
	return errorAt(r.text, at, format, args...)
}

// charge counts n bytes before they are read or written.
func (r *run) charge(at, n int) error {
	if r.work += n; r.work > maxWork {
		return r.errorAt(at, "the evaluation reads and writes more than 256 MiB").
			withHint("compute from smaller values, or in a script")
	}
	return nil
}

// made returns the new value v, or err as an error at the offset at.
func (r *run) made(at int, v Value, err error) (Value, error) {
	if err != nil {
		return Value{}, r.errorAt(at, "%s", err.Error())
	}
	return v, nil
}

func (n *constant) eval(*run) (Value, error) { return n.value, nil }

func (s plain) eval(*run) (Value, error) { return text(string(s)), nil }

// maxNames is the longest list of names in an error, in bytes.
const maxNames = 200

func (n *name) eval(r *run) (Value, error) {
	if v, ok := r.scope[n.name]; ok {
		return v, nil
	}
	err := r.errorAt(n.at, "%s was not found", abbreviate(n.name))
	known := slices.Sorted(maps.Keys(r.scope))
	if near := spell.Nearest(n.name, known); near != "" {
		return Value{}, err.withHint("did you mean %s?", near)
	}
	if names := strings.Join(known, ", "); names != "" && len(names) < maxNames {
		return Value{}, err.withHint("there are %s; write a text in quotes", names)
	}
	return Value{}, err
}

func (n *mixed) eval(r *run) (Value, error) { return r.join(n.at, n.parts) }

// join renders parts into one string.
func (r *run) join(at int, parts []node) (Value, error) {
	var b []byte
	sensitive := false
	for _, part := range parts {
		v, err := part.eval(r)
		if err != nil {
			return Value{}, err
		}
		if b, err = r.appendText(at, b, v); err != nil {
			return Value{}, err
		}
		sensitive = sensitive || v.Sensitive()
	}
	return text(string(b)).sealIf(sensitive), nil
}

// appendText appends the text of v, within the limits.
func (r *run) appendText(at int, b []byte, v Value) ([]byte, error) {
	before := len(b)
	b = v.appendText(b)
	if len(b) > maxSize {
		return nil, r.errorAt(at, "%s", errSize.Error())
	}
	return b, r.charge(at, len(b)-before)
}

func (n *array) eval(r *run) (Value, error) {
	items := make([]Value, len(n.items))
	for i, item := range n.items {
		var err error
		if items[i], err = item.eval(r); err != nil {
			return Value{}, err
		}
	}
	v, err := newArray(items)
	return r.made(n.at, v, err)
}

func (n *object) eval(r *run) (Value, error) {
	keys := make([]string, len(n.pairs))
	items := make([]Value, len(n.pairs))
	sensitive := false
	for i, p := range n.pairs {
		key, err := p.key.eval(r)
		if err != nil {
			return Value{}, err
		}
		if key.kind != String {
			return Value{}, r.errorAt(p.at, "the key is %s, and must be a string", key.kind.phrase())
		}
		if items[i], err = p.value.eval(r); err != nil {
			return Value{}, err
		}
		keys[i] = key.str
		sensitive = sensitive || key.Sensitive()
	}
	v, err := newObject(keys, items)
	return r.made(n.at, v.sealIf(sensitive), err)
}

func (n *call) eval(r *run) (Value, error) {
	v, err := n.argument.eval(r)
	if err != nil {
		return Value{}, err
	}
	var result Value
	switch n.function {
	case "bool":
		result = boolean(v.Truthy())
	case "num":
		result, err = r.num(n.at, v)
	case "str":
		result, err = r.str(n.at, v)
	default:
		panic("BUG: unknown function: " + n.function)
	}
	return result.sealIf(v.Sensitive()), err
}

func (r *run) str(at int, v Value) (Value, error) {
	if v.kind == String {
		return v, nil
	}
	b, err := r.appendText(at, nil, v)
	return text(string(b)), err
}

// num converts a string that has the form of a number in an expression, with an optional sign.
func (r *run) num(at int, v Value) (Value, error) {
	switch v.kind {
	case Number:
		return v, nil
	case String:
		f, err := parseNumber(v.str)
		if err != nil {
			return Value{}, r.errorAt(at, "num: %s", err.Error())
		}
		return number(f), nil
	default:
		return Value{}, r.errorAt(at, "num takes a string, not %s", v.kind.phrase())
	}
}
