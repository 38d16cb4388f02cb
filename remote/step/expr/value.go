package expr

import (
	"errors"
	"sort"
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

// String returns the name of the kind: "null", "boolean", "number", "string", "array" or "object".
func (k Kind) String() string {
	return [...]string{"null", "boolean", "number", "string", "array", "object"}[k]
}

// phrase is the kind as errors call a value of it.
func (k Kind) phrase() string {
	switch k {
	case Null:
		return "null"
	case Array, Object:
		return "an " + k.String()
	default:
		return "a " + k.String()
	}
}

// Value is null, a boolean, a number (a float64 that is finite), a string, an array or an object. It
// never changes. The zero Value is null; [New] makes others.
//
// A string can hold any bytes; the keys of an object are UTF-8, and come sorted.
type Value struct {
	kind   Kind
	sealed bool    // sensitive, together with all that is in it
	num    float64 // of a Number; of a Boolean, 1 is true
	str    string
	list   *list // of an Array or Object
}

// list is what an array or object holds.
type list struct {
	keys  []string // sorted; nil in an array
	items []Value
	part  bool // something in it is sensitive
	size  int  // see Value.size
	depth int  // levels, this one included
}

// itemCost is what an array or object counts for each of its values, beside the value's own size.
const itemCost = 16

var (
	errSize  = errors.New("the value has more than 16 MiB")
	errDepth = errors.New("the value has more than 100 levels")
	errTwice = errors.New("a key is given twice")
	errKey   = errors.New("a key is not valid UTF-8")
)

func boolean(b bool) Value {
	v := Value{kind: Boolean}
	if b {
		v.num = 1
	}
	return v
}

func number(f float64) Value { return Value{kind: Number, num: f} }

func text(s string) Value { return Value{kind: String, str: s} }

// newArray takes over items.
func newArray(items []Value) (Value, error) { return collect(Array, nil, items) }

// newObject takes over keys and items, which belong together by index.
func newObject(keys []string, items []Value) (Value, error) {
	for _, key := range keys {
		if !utf8.ValidString(key) {
			return Value{}, errKey
		}
	}
	sort.Sort(byKey{keys, items})
	for i := 1; i < len(keys); i++ {
		if keys[i-1] == keys[i] {
			return Value{}, errTwice
		}
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
		l.part = l.part || item.Sensitive()
	}
	if l.depth > maxDepth {
		return Value{}, errDepth
	}
	return Value{kind: kind, list: l}, nil
}

type byKey struct {
	keys  []string
	items []Value
}

func (b byKey) Len() int           { return len(b.keys) }
func (b byKey) Less(i, j int) bool { return b.keys[i] < b.keys[j] }
func (b byKey) Swap(i, j int) {
	b.keys[i], b.keys[j] = b.keys[j], b.keys[i]
	b.items[i], b.items[j] = b.items[j], b.items[i]
}

// size is about how many bytes the value has.
func (v Value) size() int {
	if v.list != nil {
		return v.list.size
	}
	return len(v.str)
}

// depth is how many arrays and objects are in each other; 0 for any other value.
func (v Value) depth() int {
	if v.list != nil {
		return v.list.depth
	}
	return 0
}

// Kind returns the type of the value.
func (v Value) Kind() Kind { return v.kind }

// Sensitive reports whether the value, or anything in it, is sensitive: whether who sees all of it sees
// a secret.
func (v Value) Sensitive() bool { return v.sealed || v.list != nil && v.list.part }

// MarkSensitive returns the value as a sensitive one, with all that is in it.
func (v Value) MarkSensitive() Value { return v.sealIf(true) }

func (v Value) sealIf(sensitive bool) Value {
	v.sealed = v.sealed || sensitive
	return v
}

// Truthy reports whether the value counts as true: whether it is true, a number but 0, or a string,
// array or object that is not empty.
func (v Value) Truthy() bool {
	if v.list != nil {
		return len(v.list.items) > 0
	}
	return v.num != 0 || v.str != ""
}

// Len returns how many values an array or object holds; 0 for any other value.
func (v Value) Len() int {
	if v.list == nil {
		return 0
	}
	return len(v.list.items)
}

// Keys returns the keys of an object, sorted; nil for any other value. The slice is the caller's.
func (v Value) Keys() []string {
	if v.list == nil || v.list.keys == nil {
		return nil
	}
	return append([]string{}, v.list.keys...)
}

// Index returns the value at i of an array, or of an object in the order of Keys. It panics if i is
// not in [0, Len).
func (v Value) Index(i int) Value { return v.list.items[i].sealIf(v.sealed) }

// Get returns the value of an object at key; false if there is none, or v is no object.
func (v Value) Get(key string) (Value, bool) {
	if v.kind != Object {
		return Value{}, false
	}
	i, found := sort.Find(len(v.list.keys), func(i int) int { return strings.Compare(key, v.list.keys[i]) })
	if !found {
		return Value{}, false
	}
	return v.Index(i), true
}
