package expr

import (
	"encoding/json"
	"strconv"
	"strings"
)

// Text returns the value as a text, like str: a string unchanged, a number in its shortest form without an exponent, an
// array or object as compact JSON, and null as <null>. It also returns the text of a sensitive value, in contrast to
// String.
func (v Value) Text() string { return string(v.appendText(nil)) }

// String returns the value for a log or an error: Text, or [MASKED] if the value is sensitive.
func (v Value) String() string {
	if v.Sensitive() {
		return "[MASKED]"
	}
	return v.Text()
}

func (v Value) appendText(b []byte) []byte {
	switch v.kind {
	case Null:
		return append(b, "<null>"...)
	case String:
		return append(b, v.str...)
	case Number:
		return strconv.AppendFloat(b, v.num+0, 'f', -1, 64) // -0 + 0 is 0
	default:
		return v.appendJSON(b)
	}
}

// MarshalJSON implements [json.Marshaler]: compact JSON with sorted keys, and with strings and numbers by RFC 8785.
// Bytes that are not UTF-8 become U+FFFD. The JSON loses the mark of a sensitive value.
func (v Value) MarshalJSON() ([]byte, error) { return v.appendJSON(nil), nil }

func (v Value) appendJSON(b []byte) []byte {
	switch v.kind {
	case Boolean:
		return strconv.AppendBool(b, v.Truthy())
	case Number:
		return appendScalar(b, v.num+0) // -0 + 0 is 0
	case String:
		return appendScalar(b, v.str)
	case Array:
		return v.appendList(b, '[', ']')
	case Object:
		return v.appendList(b, '{', '}')
	default:
		return append(b, "null"...)
	}
}

func (v Value) appendList(b []byte, opening, closing byte) []byte {
	b = append(b, opening)
	for i, item := range v.list.items {
		if i > 0 {
			b = append(b, ',')
		}
		if v.list.keys != nil {
			b = append(appendScalar(b, v.list.keys[i]), ':')
		}
		b = item.appendJSON(b)
	}
	return append(b, closing)
}

// unescaper reverses the escapes of encoding/json that RFC 8785 (3.2.2.2) does not use.
var unescaper = strings.NewReplacer(`\\`, `\\`, `\u003c`, "<", `\u003e`, ">", `\u0026`, "&",
	`\u2028`, "\u2028", `\u2029`, "\u2029", `\ufffd`, "\uFFFD")

// appendScalar appends a string or a number by the rules of RFC 8785 (3.2.2.2 and 3.2.2.3).
func appendScalar(b []byte, x any) []byte {
	data, err := json.Marshal(x)
	if err != nil {
		panic("BUG: a number that is not finite")
	}
	return append(b, unescaper.Replace(string(data))...)
}

// UnmarshalJSON implements [json.Unmarshaler], with the limits of [New].
func (v *Value) UnmarshalJSON(data []byte) error {
	var x any
	if err := json.Unmarshal(data, &x); err != nil {
		return err
	}
	var err error
	*v, err = New(x)
	return err
}
