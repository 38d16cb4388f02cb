package expr

import (
	"errors"
	"slices"
	"strings"
	"unicode/utf8"
)

// Kind is the type of a [Value].
type Kind uint8

// The kinds of values.
const (
	Null Kind = iota
	Boolean
	Number
	String
	Array
	Object
)

// phrases name the kinds in errors.
var phrases = [...]string{"null", "a boolean", "a number", "a string", "an array", "an object"}

func (k Kind) phrase() string { return phrases[k] }

// String returns the name of the kind: "null", "boolean", "number", "string", "array" or "object".
func (k Kind) String() string { return phrases[k][strings.IndexByte(phrases[k], ' ')+1:] }

// Value is null, a boolean, a number (a finite float64), a string, an array or an object. It never changes. The zero
// Value is null; [New] makes others.
//
// A string may have any bytes. The keys of an object are UTF-8 and sorted.
type Value struct {
	kind   Kind
	sealed secrecy // of the value and all its content
	num    float64 // of a Number; of a Boolean, 1 is true
	str    string
	list   *list // of an Array or Object
}

// list is the content of an array or object.
type list struct {
	keys  []string // sorted; nil in an array
	items []Value
	part  secrecy // the highest secrecy of its parts
	size  int     // see Value.size
	depth int     // levels, this one included
}

// itemCost is the size of an item in an array or object, without its value.
const itemCost = 16

var (
	errSize  = errors.New("the value has more than 16 MiB")
	errDepth = errors.New("the value has more than 100 levels")
	errTwice = errors.New("a key is given twice")
	errKey   = errors.New("a key is not valid UTF-8")
)

func boolean(b bool) Value {
	if b {
		return Value{kind: Boolean, num: 1}
	}
	return Value{kind: Boolean}
}

func number(f float64) Value { return Value{kind: Number, num: f} }

func text(s string) Value { return Value{kind: String, str: s} }

// newArray returns an array, which owns items.
func newArray(items []Value) (Value, error) { return collect(Array, nil, items) }

func newObject(fields map[string]Value) (Value, error) {
	keys := make([]string, 0, len(fields))
	for key := range fields {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	items := make([]Value, len(keys))
	for i, key := range keys {
		if !utf8.ValidString(key) {
			return Value{}, errKey
		}
		items[i] = fields[key]
	}
	return collect(Object, keys, items)
}

func collect(kind Kind, keys []string, items []Value) (Value, error) {
	l := &list{keys: keys, items: items, depth: 1}
	for i, item := range items {
		l.size += itemCost + item.size()
		if keys != nil {
			l.size += len(keys[i])
		}
		if l.size > maxSize {
			return Value{}, errSize
		}
		l.depth = max(l.depth, 1+item.depth())
		l.part = max(l.part, item.secrecy())
	}
	if l.depth > maxDepth {
		return Value{}, errDepth
	}
	return Value{kind: kind, list: l}, nil
}

// size returns the approximate size of the value in bytes.
func (v Value) size() int {
	if v.list != nil {
		return v.list.size
	}
	return len(v.str)
}

// depth returns the levels of nested arrays and objects; 0 for any other value.
func (v Value) depth() int {
	if v.list != nil {
		return v.list.depth
	}
	return 0
}

// Kind returns the type of the value.
func (v Value) Kind() Kind { return v.kind }

// secrecy is the reason why a value is sensitive. A value that is computed from several has the highest secrecy of
// them.
type secrecy uint8

const (
	public   secrecy = iota
	masked           // see MarkMasked
	declared         // see MarkSensitive
)

func (v Value) secrecy() secrecy {
	if v.list == nil {
		return v.sealed
	}
	return max(v.sealed, v.list.part)
}

// Sensitive reports whether the value or any part of it is sensitive.
func (v Value) Sensitive() bool { return v.secrecy() != public }

// Declared reports whether the value or any part of it was marked with MarkSensitive, not only with MarkMasked.
func (v Value) Declared() bool { return v.secrecy() == declared }

// MarkSensitive returns the value with all its content marked as sensitive because its author declared it so.
func (v Value) MarkSensitive() Value { return v.seal(declared) }

// MarkMasked returns the value with all its content marked as sensitive because it comes from a masked variable.
func (v Value) MarkMasked() Value { return v.seal(masked) }

// MarkLike returns the value with all its content marked like other.
func (v Value) MarkLike(other Value) Value { return v.seal(other.secrecy()) }

func (v Value) seal(s secrecy) Value {
	v.sealed = max(v.sealed, s)
	return v
}

// Truthy reports whether the value counts as true: true, a number other than 0, or a string, array or object that is
// not empty.
func (v Value) Truthy() bool {
	if v.list != nil {
		return len(v.list.items) > 0
	}
	return v.num != 0 || v.str != ""
}

// Len returns the number of values in an array or object; 0 for any other value.
func (v Value) Len() int {
	if v.list == nil {
		return 0
	}
	return len(v.list.items)
}

// Keys returns the sorted keys of an object, or nil for any other value. The caller may change the slice.
func (v Value) Keys() []string {
	if v.kind != Object {
		return nil
	}
	return slices.Clone(v.list.keys)
}

// Index returns the value at i of an array, or of an object in the order of Keys. It panics if i is not in [0, Len).
func (v Value) Index(i int) Value { return v.list.items[i].seal(v.sealed) }

// Get returns the value of an object at key. It returns false if v has no such key or is not an object.
func (v Value) Get(key string) (Value, bool) {
	if v.kind == Object {
		if i, found := slices.BinarySearch(v.list.keys, key); found {
			return v.Index(i), true
		}
	}
	return Value{}, false
}
