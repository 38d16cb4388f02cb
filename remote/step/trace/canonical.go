package trace

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"
)

// canonical returns v in the form of RFC 8785. Errors call it name.
func canonical(v any, name string) ([]byte, error) {
	data, err := json.Marshal(v)
	if err == nil {
		data, err = rewrite(data)
	}
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", name, err)
	}
	return data, nil
}

// rewrite converts JSON to the form of RFC 8785. Foreign JSON may have duplicate keys or invalid UTF-8: checkTokens
// refuses those.
func rewrite(data []byte) ([]byte, error) {
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		return nil, err
	}
	return appendCanonical(make([]byte, 0, len(data)), v)
}

// appendCanonical appends a value that json.Unmarshal has made.
func appendCanonical(to []byte, v any) (_ []byte, err error) {
	switch v := v.(type) {
	case map[string]any:
		keys := make(byCodeUnit, 0, len(v))
		for key := range v {
			keys = append(keys, key)
		}
		sort.Sort(keys)
		to = append(to, '{')
		for i, key := range keys {
			if i > 0 {
				to = append(to, ',')
			}
			if to, err = appendCanonical(append(appendText(to, key), ':'), v[key]); err != nil {
				return nil, err
			}
		}
		return append(to, '}'), nil
	case []any:
		to = append(to, '[')
		for i, element := range v {
			if i > 0 {
				to = append(to, ',')
			}
			if to, err = appendCanonical(to, element); err != nil {
				return nil, err
			}
		}
		return append(to, ']'), nil
	case string:
		return appendText(to, v), nil
	case float64:
		if v == 0 {
			return append(to, '0'), nil // -0, too
		}
	}
	text, err := json.Marshal(v) // a number, as ECMAScript writes it, true, false or null
	return append(to, text...), err
}

// appendText appends a JSON string. It escapes only quotes, backslashes and control characters.
func appendText(to []byte, text string) []byte {
	to = append(to, '"')
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\\':
			to = append(to, '\\', c)
		case c >= ' ':
			to = append(to, c)
		case strings.IndexByte("\b\t\n\f\r", c) >= 0:
			to = append(to, '\\', "btn-fr"[c-'\b'])
		default:
			to = fmt.Appendf(to, `\u%04x`, c)
		}
	}
	return append(to, '"')
}

// byCodeUnit sorts keys by their UTF-16 code units. That order differs from the order of bytes in one case: characters
// beyond the first plane, whose code units begin at D800, come before those from E000 on.
type byCodeUnit []string

func (k byCodeUnit) Len() int      { return len(k) }
func (k byCodeUnit) Swap(i, j int) { k[i], k[j] = k[j], k[i] }

func (k byCodeUnit) Less(i, j int) bool {
	a, b := k[i], k[j]
	for n := range min(len(a), len(b)) {
		x, y := a[n], b[n]
		if x == y {
			continue
		}
		const e000, beyond = 0xee, 0xf0 // first bytes in UTF-8
		if x >= e000 && y >= e000 && (x >= beyond) != (y >= beyond) {
			return x >= beyond
		}
		return x < y
	}
	return len(a) < len(b)
}

// Canonical returns the identity in its canonical form: JSON by RFC 8785.
func (i *Identity) Canonical() ([]byte, error) { return canonical(i, "identity") }

// idOf returns the id of an identity in its canonical form.
func idOf(canonical []byte) string {
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:])
}

// Encode sets t's id, and its schema if that is empty, and returns t in the canonical JSON of RFC 8785, with a newline.
//
// If t exceeds MaxSize, Encode leaves out large data of steps, those at the end first, and then the outputs and exports
// of the job. It marks the steps as truncated, and adds a warning to t.
func (t *Trace) Encode() ([]byte, error) { return t.encodeWithin(maxValues, MaxSize) }

// encodeWithin is Encode with other limits.
func (t *Trace) encodeWithin(values, size int) ([]byte, error) {
	data, err := t.encode(values, size)
	for _, cut := range []func() string{t.cutLastHalf, t.cutSteps, t.cutResults} {
		var tooLarge sizeError
		if !errors.As(err, &tooLarge) {
			break
		}
		t.Volatile.Warnings = append(t.Volatile.Warnings, fmt.Sprintf("%s: %v", cut(), tooLarge))
		data, err = t.encode(values, size)
	}
	return data, err
}

// encode is encodeWithin of all of t.
func (t *Trace) encode(values, size int) ([]byte, error) {
	identity, err := t.Identity.Canonical()
	if err != nil {
		return nil, err
	}
	t.Schema, t.ID = cmp.Or(t.Schema, Schema), idOf(identity)
	data, err := canonical(t, "trace")
	if err != nil {
		return nil, err
	}
	if err := checkShape(data, values); err != nil {
		return nil, fmt.Errorf("encode trace: %w", err)
	}
	if len(data) >= size {
		return nil, fmt.Errorf("encode trace: %w",
			sizeError(fmt.Sprintf("the trace has %d bytes, the limit is %d", len(data)+1, size)))
	}
	return append(data, '\n'), nil
}
