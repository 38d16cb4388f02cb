package expr

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
)

// New converts x to a value. x is nil, a bool, a string, an int, int64, uint64 or float64, a Value, a [structpb.Value],
// or a slice or a map with string keys of any, string, Value or structpb.Value. New copies the content of x. Integers
// become the nearest float64.
//
// Another type, a number that is not finite, a key that is not UTF-8, or a value beyond the limits is an error.
func New(x any) (Value, error) {
	return new(converter).convert(x, 0)
}

// converter counts the converted bytes, because shared or cyclic values could otherwise exceed the memory.
type converter struct{ size int }

func (c *converter) convert(x any, depth int) (Value, error) {
	switch x := x.(type) {
	case nil, *structpb.Value_NullValue:
		return Value{}, nil
	case Value:
		return x, c.count(x.size())
	case bool:
		return boolean(x), nil
	case string:
		return text(x), c.count(len(x))
	case float64:
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return Value{}, errors.New("a number is not finite")
		}
		return number(x), nil
	case int:
		return number(float64(x)), nil
	case int64:
		return number(float64(x)), nil
	case uint64:
		return number(float64(x)), nil
	case []any, []string, []Value, []*structpb.Value:
		return c.array(reflect.ValueOf(x), depth)
	case map[string]any, map[string]string, map[string]Value, map[string]*structpb.Value:
		return c.object(reflect.ValueOf(x), depth)
	case *structpb.Value:
		if x != nil && x.GetKind() == nil {
			return Value{}, errors.New("a value has no kind")
		}
		return c.convert(x.GetKind(), depth)
	case *structpb.Value_BoolValue:
		return boolean(x.BoolValue), nil
	case *structpb.Value_NumberValue:
		return c.convert(x.NumberValue, depth)
	case *structpb.Value_StringValue:
		return c.convert(x.StringValue, depth)
	case *structpb.Value_ListValue:
		return c.convert(x.ListValue.GetValues(), depth)
	case *structpb.Value_StructValue:
		return c.convert(x.StructValue.GetFields(), depth)
	default:
		return Value{}, fmt.Errorf("an expression cannot have a value of the type %T", x)
	}
}

// count adds n converted bytes.
func (c *converter) count(n int) error {
	if c.size += n; c.size > maxSize {
		return errSize
	}
	return nil
}

// enter counts an array or object with n values at depth.
func (c *converter) enter(n, depth int) error {
	if depth >= maxDepth {
		return errDepth
	}
	return c.count(itemCost * n)
}

// array and object are not generic: that would make the VM's end 8 KB larger.
func (c *converter) array(x reflect.Value, depth int) (Value, error) {
	if err := c.enter(x.Len(), depth); err != nil {
		return Value{}, err
	}
	items := make([]Value, x.Len())
	for i := range items {
		var err error
		if items[i], err = c.convert(x.Index(i).Interface(), depth+1); err != nil {
			return Value{}, err
		}
	}
	return newArray(items)
}

func (c *converter) object(x reflect.Value, depth int) (Value, error) {
	if err := c.enter(x.Len(), depth); err != nil {
		return Value{}, err
	}
	fields := make(map[string]Value, x.Len())
	for item := x.MapRange(); item.Next(); {
		key := item.Key().String()
		if err := c.count(len(key)); err != nil {
			return Value{}, err
		}
		var err error
		if fields[key], err = c.convert(item.Value().Interface(), depth+1); err != nil {
			return Value{}, err
		}
	}
	return newObject(fields)
}

// Proto returns the value as a new message. The message loses the mark of a sensitive value, and has only UTF-8: other
// bytes become U+FFFD.
func (v Value) Proto() *structpb.Value {
	p, err := structpb.NewValue(v.plain(func(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }))
	if err != nil {
		panic("BUG: a value that has no message: " + err.Error())
	}
	return p
}

// Any returns the value as nil, a bool, float64 or string, or a new []any or map[string]any.
func (v Value) Any() any { return v.plain(func(s string) string { return s }) }

// plain is Any with str applied to its strings, but not to the keys.
func (v Value) plain(str func(string) string) any {
	switch v.kind {
	case Boolean:
		return v.Truthy()
	case Number:
		return v.num
	case String:
		return str(v.str)
	case Array:
		items := make([]any, len(v.list.items))
		for i, item := range v.list.items {
			items[i] = item.plain(str)
		}
		return items
	case Object:
		fields := make(map[string]any, len(v.list.items))
		for i, item := range v.list.items {
			fields[v.list.keys[i]] = item.plain(str)
		}
		return fields
	default:
		return nil
	}
}
