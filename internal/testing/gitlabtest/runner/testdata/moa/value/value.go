// Package value stands for the values of expressions: here all are null.
package value

import (
	"errors"
	"iter"
)

// Kind is the kind of a Value.
type Kind int

// The kinds.
const (
	NullKind Kind = iota
	StringKind
	NumberKind
	BoolKind
	ArrayKind
	ObjectKind
)

// Errors of an Object.
var (
	ErrAttributeNotFound = errors.New("attribute not found")
	ErrInvalidKey        = errors.New("invalid key")
)

// Mapper has values by their keys.
type Mapper interface {
	All() iter.Seq2[Value, Value]
	Attr(string) (Value, error)
	Get(Value) (Value, error)
	Keys() iter.Seq[Value]
	Len() int
	Values() iter.Seq[Value]
	WithMarks(uint16) Mapper
}

// Value is null.
type Value struct{}

// Null returns null.
func Null() Value { return Value{} }

// String returns null.
func String(string) Value { return Value{} }

// Object returns null.
func Object(Mapper) Value { return Value{} }

// Kind returns NullKind.
func (Value) Kind() Kind { return NullKind }

// String returns an empty text.
func (Value) String() string { return "" }

// WithMarks returns null.
func (v Value) WithMarks(uint16) Value { return v }

// HasMarks returns false.
func (Value) HasMarks(uint16) bool { return false }
