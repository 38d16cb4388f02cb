package mask

import (
	"bytes"
	"encoding/json"
	"errors"

	"github.com/stepmux/stepmux/remote/step/expr"
)

// Text is a text, or the HMAC of a masked one.
type Text struct {
	// Value is the text, with markers for paths. It is empty if Masked is set.
	Value  string
	Masked bool
	// HMAC is the sum of a masked text, in hexadecimal. See [Salt.Sum].
	HMAC string
}

// Value is a value of an expression, or the HMAC of a masked one.
type Value struct {
	// Value is the value; its texts have markers for paths. It is null if Masked is set.
	Value  expr.Value
	Masked bool
	// HMAC is the sum of a masked value, in hexadecimal: of a string itself, of any other value its JSON.
	HMAC string
	// Type is that of a masked value: null, boolean, number, string, array or object.
	Type string
}

// Texts are texts by name. Nil is an empty object in JSON.
type Texts map[string]Text

// Values are values by name. Nil is an empty object in JSON.
type Values map[string]Value

// masked is the JSON form of a masked value. An object that is not secret and has a member "masked" is written as
// {"masked": false, "value": ...}, so that it cannot be mistaken for a masked value.
type masked struct {
	Masked *bool           `json:"masked"`
	HMAC   string          `json:"hmac,omitempty"`
	Type   string          `json:"type,omitempty"`
	Value  json.RawMessage `json:"value,omitempty"`
}

var yes, no = true, false

var errMasked = errors.New(`a masked value must be {"masked": true, "hmac": "..."}`)

// MarshalJSON implements [json.Marshaler].
func (t Text) MarshalJSON() ([]byte, error) {
	if t.Masked {
		return json.Marshal(masked{Masked: &yes, HMAC: t.HMAC})
	}
	return json.Marshal(t.Value)
}

// UnmarshalJSON implements [json.Unmarshaler].
func (t *Text) UnmarshalJSON(data []byte) error {
	*t = Text{}
	switch {
	case string(data) == "null":
		return errors.New("a text is null")
	case len(data) == 0 || data[0] != '{':
		return json.Unmarshal(data, &t.Value)
	}
	var m masked
	if err := m.decode(data); err != nil {
		return err
	}
	if m.Masked == nil || !*m.Masked || m.Type != "" || m.Value != nil {
		return errMasked
	}
	t.Masked, t.HMAC = true, m.HMAC
	return nil
}

// MarshalJSON implements [json.Marshaler].
func (v Value) MarshalJSON() ([]byte, error) {
	if v.Masked {
		return json.Marshal(masked{Masked: &yes, HMAC: v.HMAC, Type: v.Type})
	}
	data, err := v.Value.MarshalJSON()
	if _, alike := v.Value.Get("masked"); !alike || err != nil {
		return data, err
	}
	return json.Marshal(masked{Masked: &no, Value: data})
}

// UnmarshalJSON implements [json.Unmarshaler].
func (v *Value) UnmarshalJSON(data []byte) error {
	*v = Value{}
	if err := json.Unmarshal(data, &v.Value); err != nil {
		return err
	}
	if _, is := v.Value.Get("masked"); !is {
		return nil
	}
	var m masked
	if err := m.decode(data); err != nil {
		return err
	}
	switch {
	case m.Masked != nil && *m.Masked && m.Value == nil:
		*v = Value{Masked: true, HMAC: m.HMAC, Type: m.Type}
		return nil
	case m.Masked != nil && !*m.Masked && m.Value != nil && m.HMAC == "" && m.Type == "":
		return json.Unmarshal(m.Value, &v.Value)
	default:
		return errMasked
	}
}

// MarshalJSON implements [json.Marshaler].
func (t Texts) MarshalJSON() ([]byte, error) { return marshalMap(t) }

// MarshalJSON implements [json.Marshaler].
func (v Values) MarshalJSON() ([]byte, error) { return marshalMap(v) }

func marshalMap[T any](m map[string]T) ([]byte, error) {
	if m == nil {
		return []byte("{}"), nil
	}
	return json.Marshal(m)
}

// decode reads m, and refuses unknown members.
func (m *masked) decode(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	return d.Decode(m)
}
