package expression

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"
)

// builtin is a function of every expression. Its arguments are nodes, because case does not compute all of them.
type builtin struct {
	min, max int
	call     func(*evaluation, []node) (Value, error)
}

var builtins map[string]builtin

func init() {
	builtins = map[string]builtin{
		"contains":   {2, 2, plain(contains)},
		"startswith": {2, 2, plain(affix(strings.HasPrefix))},
		"endswith":   {2, 2, plain(affix(strings.HasSuffix))},
		"format":     {1, math.MaxInt, plain(format)},
		"join":       {1, 2, plain(join)},
		"tojson":     {1, 1, plain(toJSON)},
		"fromjson":   {1, 1, plain(fromJSON)},
		"case":       {3, math.MaxInt, choose},
	}
}

// plain makes a builtin from a function of values.
func plain(f func(*evaluation, []Value) (Value, error)) func(*evaluation, []node) (Value, error) {
	return func(e *evaluation, nodes []node) (Value, error) {
		args, err := e.all(nodes)
		if err != nil {
			return Value{}, err
		}
		return f(e, args)
	}
}

func contains(e *evaluation, args []Value) (Value, error) {
	in, item := args[0], args[1]
	if list, ok := in.any.(*array); ok {
		for _, v := range list.items {
			if err := e.compare(v, item); err != nil {
				return Value{}, err
			}
			if equal(v, item) {
				return Boolean(true), nil
			}
		}
		return Boolean(false), nil
	}
	found := in.isPrimitive() && item.isPrimitive() && strings.Contains(upper(in.Text()), upper(item.Text()))
	return Boolean(found), e.compare(in, item)
}

// affix returns startsWith or endsWith.
func affix(has func(s, affix string) bool) func(*evaluation, []Value) (Value, error) {
	return func(e *evaluation, args []Value) (Value, error) {
		a, b := args[0], args[1]
		return Boolean(a.isPrimitive() && b.isPrimitive() && has(upper(a.Text()), upper(b.Text()))), e.compare(a, b)
	}
}

// choose is case: it computes only the predicates up to the first true one, and the value of that.
func choose(e *evaluation, nodes []node) (Value, error) {
	for ; len(nodes) > 1; nodes = nodes[2:] {
		v, err := nodes[0].eval(e)
		if err != nil {
			return Value{}, err
		}
		is, ok := v.any.(bool)
		if !ok {
			return Value{}, mistakef("case predicate must evaluate to a boolean value")
		}
		if is {
			return nodes[1].eval(e)
		}
	}
	return nodes[0].eval(e)
}

func join(e *evaluation, args []Value) (Value, error) {
	list, ok := args[0].any.(*array)
	if !ok {
		if args[0].isPrimitive() {
			return String(args[0].Text()), nil
		}
		return String(""), nil
	}
	separator := ","
	if len(args) > 1 && args[1].isPrimitive() {
		separator = args[1].Text()
	}
	var out strings.Builder
	for i, item := range list.items {
		if i > 0 {
			out.WriteString(separator)
		}
		text := item.Text()
		out.WriteString(text)
		if err := e.spend(len(text) + len(separator)); err != nil {
			return Value{}, err
		}
	}
	return String(out.String()), nil
}

// format replaces {0}, {1} and so on by the arguments. {{ and }} are literal braces.
func format(e *evaluation, args []Value) (Value, error) {
	f := args[0].Text()
	var out strings.Builder
	for i := 0; i < len(f); {
		switch c := f[i]; {
		case c != '{' && c != '}':
			next := strings.IndexAny(f[i:], "{}")
			if next < 0 {
				next = len(f) - i
			}
			out.WriteString(f[i : i+next])
			i += next
			if err := e.spend(next); err != nil {
				return Value{}, err
			}
		case strings.HasPrefix(f[i+1:], string(c)):
			out.WriteByte(c)
			i += 2
		case c == '}':
			return Value{}, mistakef("The following format string is invalid: %.400s", f)
		default:
			n, _, closed := strings.Cut(f[i+1:], "}")
			which, err := strconv.ParseUint(n, 10, 8)
			if !closed || err != nil {
				return Value{}, mistakef("The following format string is invalid: %.400s", f)
			}
			if int(which) >= len(args)-1 {
				return Value{}, mistakef("The following format string references more arguments than were supplied: %.400s", f)
			}
			text := args[which+1].Text()
			out.WriteString(text)
			i += len(n) + 2
			if err := e.spend(len(text)); err != nil {
				return Value{}, err
			}
		}
	}
	return String(out.String()), nil
}

func toJSON(e *evaluation, args []Value) (Value, error) {
	var out strings.Builder
	if err := writeJSON(e, &out, args[0], "\n"); err != nil {
		return Value{}, err
	}
	return String(out.String()), nil
}

// writeJSON writes v. newline is a line break with the indent of the line.
func writeJSON(e *evaluation, out *strings.Builder, v Value, newline string) error {
	before := out.Len()
	inner := newline + "  "
	switch x := v.any.(type) {
	case nil:
		out.WriteString("null")
	case string:
		out.WriteString(quoteJSON(x))
	case *array:
		out.WriteByte('[')
		for i, item := range x.items {
			if i > 0 {
				out.WriteByte(',')
			}
			out.WriteString(inner)
			if err := writeJSON(e, out, item, inner); err != nil {
				return err
			}
		}
		if len(x.items) > 0 {
			out.WriteString(newline)
		}
		out.WriteByte(']')
	case *object:
		out.WriteByte('{')
		for i, key := range x.keys {
			if i > 0 {
				out.WriteByte(',')
			}
			out.WriteString(inner + quoteJSON(key) + ": ")
			if err := writeJSON(e, out, x.values[key], inner); err != nil {
				return err
			}
		}
		if len(x.keys) > 0 {
			out.WriteString(newline)
		}
		out.WriteByte('}')
	default:
		out.WriteString(v.Text())
	}
	return e.spend(out.Len() - before)
}

func quoteJSON(s string) string {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(strings.ToValidUTF8(s, "\uFFFD")) // a text can always be encoded
	return strings.TrimSuffix(out.String(), "\n")
}

// maxJSONDepth bounds the nesting of a text that fromJSON reads.
const maxJSONDepth = 100

func fromJSON(e *evaluation, args []Value) (Value, error) {
	text := args[0].Text()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	v, err := readJSON(e, d, 0)
	if err == nil {
		if _, err = d.Token(); errors.Is(err, io.EOF) {
			return v, nil
		}
		err = errors.New("something follows the value")
	}
	if own := mistake(""); errors.As(err, &own) {
		return Value{}, err
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("the text is empty or ends too early")
	}
	return Value{}, mistakef("Error parsing fromJson: %v", err)
}

// readJSON reads a value. The keys of an object keep their order.
func readJSON(e *evaluation, d *json.Decoder, level int) (Value, error) {
	t, err := d.Token()
	if err != nil {
		return Value{}, err
	}
	if level > maxJSONDepth {
		return Value{}, mistakef("Error parsing fromJson: it is nested deeper than %d", maxJSONDepth)
	}
	switch t := t.(type) {
	case json.Number:
		f, _ := strconv.ParseFloat(t.String(), 64) // infinite if it is too large
		return Number(f), e.spend(valueSize)
	case string:
		return String(t), e.spend(valueSize + len(t))
	case bool:
		return Boolean(t), e.spend(valueSize)
	case json.Delim:
		if t == '[' {
			return readJSONArray(e, d, level)
		}
		return readJSONObject(e, d, level)
	default:
		return Value{}, nil
	}
}

func readJSONArray(e *evaluation, d *json.Decoder, level int) (Value, error) {
	var items []Value
	for d.More() {
		item, err := readJSON(e, d, level+1)
		if err != nil {
			return Value{}, err
		}
		items = append(items, item)
	}
	_, err := d.Token()
	return Array(items...), err
}

func readJSONObject(e *evaluation, d *json.Decoder, level int) (Value, error) {
	var keys []string
	values := map[string]Value{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return Value{}, err
		}
		key, _ := t.(string) // the decoder accepts only strings as keys
		v, err := readJSON(e, d, level+1)
		if err != nil {
			return Value{}, err
		}
		if _, twice := values[key]; !twice {
			keys = append(keys, key)
		}
		values[key] = v
		if err := e.spend(2*len(key) + 2*valueSize); err != nil {
			return Value{}, err
		}
	}
	_, err := d.Token()
	return Ordered(keys, values), err
}
