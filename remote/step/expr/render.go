package expr

import (
	"encoding/json"
	"strconv"
	"unicode/utf8"
)

// Text returns the value as a text, as str does: a string as it is, a number in its shortest form without an exponent,
// an array or object as compact JSON, and null as <null>. It returns the text of a sensitive value too; String does
// not.
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
// Bytes that are not UTF-8 become U+FFFD. The JSON does not tell that a value is sensitive.
func (v Value) MarshalJSON() ([]byte, error) { return v.appendJSON(nil), nil }

func (v Value) appendJSON(b []byte) []byte {
	switch v.kind {
	case Boolean:
		return strconv.AppendBool(b, v.Truthy())
	case Number:
		return appendNumber(b, v.num)
	case String:
		return appendString(b, v.str)
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
			b = append(appendString(b, v.list.keys[i]), ':')
		}
		b = item.appendJSON(b)
	}
	return append(b, closing)
}

// appendNumber appends f as ECMAScript writes it (RFC 8785, 3.2.2.3).
func appendNumber(b []byte, f float64) []byte {
	data, err := json.Marshal(f + 0) // -0 + 0 is 0
	if err != nil {
		panic("BUG: a number that is not finite")
	}
	return append(b, data...)
}

// escapeLetters has the letter of each character with a one-letter escape.
var escapeLetters = map[byte]byte{'"': '"', '\\': '\\', '\b': 'b', '\f': 'f', '\n': 'n', '\r': 'r', '\t': 't'}

// appendString appends s as a JSON string with only the necessary escapes (RFC 8785, 3.2.2.2).
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0 // of the bytes not copied yet
	for i := 0; i < len(s); {
		c, size := rune(s[i]), 1
		if c >= utf8.RuneSelf {
			c, size = utf8.DecodeRuneInString(s[i:])
		}
		bad := c == utf8.RuneError && size == 1
		if bad || c < ' ' || c == '"' || c == '\\' {
			b = append(b, s[start:i]...)
			b = appendEscape(b, c)
			start = i + size
		}
		i += size
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

func appendEscape(b []byte, c rune) []byte {
	if c == utf8.RuneError {
		return utf8.AppendRune(b, c)
	}
	if letter, ok := escapeLetters[byte(c)]; ok {
		return append(b, '\\', letter)
	}
	const hex = "0123456789abcdef"
	return append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xf])
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
