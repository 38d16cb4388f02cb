package expr

import (
	"strings"

	"github.com/stepmux/stepmux/internal/sortedkeys"
)

// Scope has the values of names. An evaluation only reads it.
type Scope map[string]Value

// run is one evaluation. It ends with an error by a panic, see catch.
type run struct {
	text  string // the parsed text
	scope Scope
	work  int // bytes read and written so far
}

func (r *run) errorAt(at int, format string, args ...any) *Error {
	return errorAt(r.text, at, format, args...)
}

// charge counts n bytes before they are read or written.
func (r *run) charge(at, n int) {
	if r.work += n; r.work > maxWork {
		panic(r.errorAt(at, "the evaluation reads and writes more than 256 MiB").
			withHint("compute from smaller values, or in a script"))
	}
}

// check ends the evaluation with err, as an error at the offset at. It does nothing if err is nil.
func (r *run) check(at int, err error) {
	if err != nil {
		panic(r.errorAt(at, "%s", err.Error()))
	}
}

func (n *constant) eval(*run) Value { return n.value }

func (s plain) eval(*run) Value { return text(string(s)) }

// maxNames bounds the list of names in an error, in bytes.
const maxNames = 200

func (n *name) eval(r *run) Value {
	if v, ok := r.scope[n.name]; ok {
		return v
	}
	known := sortedkeys.Of(r.scope)
	hint := ""
	if names := strings.Join(known, ", "); names != "" && len(names) < maxNames {
		hint = "there are " + names + "; write a text in quotes"
	}
	panic(r.errorAt(n.at, "%s was not found", Abbreviate(n.name)).withNearest(n.name, known, hint))
}

func (n *mixed) eval(r *run) Value { return r.join(n.at, n.parts) }

// join renders parts into one string.
func (r *run) join(at int, parts []node) Value {
	var b []byte
	var highest secrecy
	for _, part := range parts {
		v := part.eval(r)
		b = r.appendText(at, b, v)
		highest = max(highest, v.secrecy())
	}
	return text(string(b)).seal(highest)
}

// appendText appends the text of v, within the limits.
func (r *run) appendText(at int, b []byte, v Value) []byte {
	before := len(b)
	b = v.appendText(b)
	if len(b) > maxSize {
		r.check(at, errSize)
	}
	r.charge(at, len(b)-before)
	return b
}

func (n *array) eval(r *run) Value {
	items := make([]Value, len(n.items))
	for i, item := range n.items {
		items[i] = item.eval(r)
	}
	v, err := newArray(items)
	r.check(n.at, err)
	return v
}

func (n *object) eval(r *run) Value {
	fields := make(map[string]Value, len(n.pairs))
	var highest secrecy
	for _, p := range n.pairs {
		key := p.key.eval(r)
		if key.kind != String {
			panic(r.errorAt(p.at, "the key is %s, and must be a string", key.kind.phrase()))
		}
		if _, twice := fields[key.str]; twice {
			r.check(n.at, errTwice)
		}
		fields[key.str] = p.value.eval(r)
		highest = max(highest, key.secrecy())
	}
	v, err := newObject(fields)
	r.check(n.at, err)
	return v.seal(highest)
}

func (n *call) eval(r *run) Value {
	v := n.argument.eval(r)
	result := v
	switch n.function {
	case "bool":
		result = boolean(v.Truthy())
	case "num":
		result = r.num(n.at, v)
	case "str":
		if v.kind != String {
			result = text(string(r.appendText(n.at, nil, v)))
		}
	default:
		panic("BUG: unknown function: " + n.function)
	}
	return result.MarkLike(v)
}

// num converts a string that has the form of a number in an expression, with an optional sign.
func (r *run) num(at int, v Value) Value {
	switch v.kind {
	case Number:
		return v
	case String:
		f, err := parseNumber(v.str)
		if err != nil {
			panic(r.errorAt(at, "num: %s", err.Error()))
		}
		return number(f)
	default:
		panic(r.errorAt(at, "num takes a string, not %s", v.kind.phrase()))
	}
}
