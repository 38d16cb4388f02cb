package expression

import (
	"iter"
	"math"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/internal/sortedkeys"
)

// Value is a value of an expression: null, a boolean, a number, a text, an array or an object. The zero value is null.
type Value struct{ any any }

// array and object are compared by identity: two with the same content are not equal.
type (
	array struct {
		items []Value
		// filtered says that the array comes from .*: an index applies to each of its items.
		filtered bool
	}
	object struct {
		keys   []string
		values map[string]Value
		folded map[string]string // keys by their form in upper case
	}
)

// valueSize is the estimated size of an item without its text, in bytes.
const valueSize = 32

// String returns a text.
func String(s string) Value { return Value{s} }

// Number returns a number.
func Number(f float64) Value { return Value{f} }

// Boolean returns a boolean.
func Boolean(b bool) Value { return Value{b} }

// Array returns an array of items.
func Array(items ...Value) Value { return Value{&array{items: items}} }

// Object returns an object with the properties, sorted by name.
func Object(properties map[string]Value) Value {
	return Ordered(sortedkeys.Of(properties), properties)
}

// Texts returns an object with texts.
func Texts(properties map[string]string) Value {
	values := make(map[string]Value, len(properties))
	for name, text := range properties {
		values[name] = String(text)
	}
	return Object(values)
}

// Ordered returns an object with the keys in that order. Each of them is in values.
func Ordered(keys []string, values map[string]Value) Value {
	o := &object{keys: keys, values: values, folded: make(map[string]string, len(keys))}
	for _, key := range keys {
		if _, there := o.folded[upper(key)]; !there {
			o.folded[upper(key)] = key
		}
	}
	return Value{o}
}

// Kind returns Null, Boolean, Number, String, Array or Object.
func (v Value) Kind() string {
	switch v.any.(type) {
	case bool:
		return "Boolean"
	case float64:
		return "Number"
	case string:
		return "String"
	case *array:
		return "Array"
	case *object:
		return "Object"
	default:
		return "Null"
	}
}

func (v Value) isPrimitive() bool { return v.Kind() != "Array" && v.Kind() != "Object" }

// Truthy reports whether the value counts as true: every value except null, false, 0, NaN and the empty text.
func (v Value) Truthy() bool {
	switch x := v.any.(type) {
	case nil:
		return false
	case bool:
		return x
	case float64:
		return x != 0 && !math.IsNaN(x)
	case string:
		return x != ""
	default:
		return true
	}
}

// Text returns the value as a text. For an array or an object it returns the name of the kind.
func (v Value) Text() string {
	switch x := v.any.(type) {
	case nil:
		return ""
	case bool:
		if x {
			return "true"
		}
		return "false"
	case float64:
		return formatNumber(x)
	case string:
		return x
	default:
		return v.Kind()
	}
}

// number converts a primitive value to a number. Other values are NaN.
func (v Value) number() float64 {
	switch x := v.any.(type) {
	case nil:
		return 0
	case bool:
		if x {
			return 1
		}
		return 0
	case float64:
		return x
	case string:
		return parseNumber(x)
	default:
		return math.NaN()
	}
}

// New returns the value of x, which is nil, bool, float64, string, []any or map[string]any.
func New(x any) Value {
	switch x := x.(type) {
	case bool, float64, string:
		return Value{x}
	case []any:
		items := make([]Value, len(x))
		for i, item := range x {
			items[i] = New(item)
		}
		return Array(items...)
	case map[string]any:
		values := make(map[string]Value, len(x))
		for key, item := range x {
			values[key] = New(item)
		}
		return Object(values)
	default:
		return Value{}
	}
}

// Any is the reverse of [New].
func (v Value) Any() any {
	switch x := v.any.(type) {
	case *array:
		list := make([]any, len(x.items))
		for i, item := range x.items {
			list[i] = item.Any()
		}
		return list
	case *object:
		all := make(map[string]any, len(x.keys))
		for key, item := range x.values {
			all[key] = item.Any()
		}
		return all
	default:
		return x
	}
}

// Size returns the estimated size of the value, in bytes.
func (v Value) Size() int {
	size := valueSize
	switch x := v.any.(type) {
	case string:
		size += len(x)
	case *object:
		for _, key := range x.keys {
			size += len(key)
		}
	}
	for _, item := range v.children() {
		size += item.Size()
	}
	return size
}

// at returns the property or the item of an index, if it exists.
func (v Value) at(by Value) (Value, bool) {
	switch x := v.any.(type) {
	case *object:
		if !by.isPrimitive() {
			return Value{}, false
		}
		return x.property(by.Text())
	case *array:
		f := math.Floor(by.number())
		if math.IsNaN(f) || f < 0 || f >= float64(len(x.items)) {
			return Value{}, false
		}
		return x.items[int(f)], true
	default:
		return Value{}, false
	}
}

func (o *object) property(name string) (Value, bool) {
	if v, there := o.values[name]; there {
		return v, true
	}
	key, there := o.folded[upper(name)]
	return o.values[key], there
}

// Properties yields the properties of an object, in order. A value of another kind has none.
func (v Value) Properties() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		o, ok := v.any.(*object)
		for i := 0; ok && i < len(o.keys) && yield(o.keys[i], o.values[o.keys[i]]); i++ {
		}
	}
}

// children returns the items of an array or the values of an object.
func (v Value) children() []Value {
	switch x := v.any.(type) {
	case *array:
		return x.items
	case *object:
		all := make([]Value, len(x.keys))
		for i, key := range x.keys {
			all[i] = x.values[key]
		}
		return all
	default:
		return nil
	}
}

// all returns the value of v.*.
func (v Value) all(e *evaluation) (Value, error) {
	found := &array{filtered: true}
	if list, ok := v.any.(*array); ok && list.filtered {
		for _, item := range list.items {
			found.items = append(found.items, item.children()...)
			if err := e.spend(valueSize * len(item.children())); err != nil {
				return Value{}, err
			}
		}
		return Value{found}, nil
	}
	found.items = slices.Clone(v.children())
	return Value{found}, e.spend(valueSize * len(found.items))
}

// upper returns the form in which texts are compared. As in .NET's invariant culture, only letters change that have one
// other form: not the dotless i and the long s.
func upper(s string) string {
	ascii := true
	for i := range len(s) {
		ascii = ascii && s[i] < 0x80
	}
	if ascii {
		return strings.ToUpper(s)
	}
	return strings.Map(upperRune, s)
}
