package trace

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/gowebpki/jcs"
)

// canonical returns v as RFC 8785 has it. Errors call it name.
func canonical(v any, name string) ([]byte, error) {
	data, err := json.Marshal(v)
	if err == nil {
		data, err = jcs.Transform(data)
	}
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", name, err)
	}
	return data, nil
}

// Canonical returns the identity in its canonical form: JSON as RFC 8785 has it.
func (i *Identity) Canonical() ([]byte, error) { return canonical(i, "identity") }

// idOf returns the id of an identity in its canonical form.
func idOf(canonical []byte) string {
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:])
}

// Encode sets t's id, and its schema if that is empty, and returns t in the canonical JSON of RFC 8785, with a
// newline.
func (t *Trace) Encode() ([]byte, error) {
	identity, err := t.Identity.Canonical()
	if err != nil {
		return nil, err
	}
	t.Schema, t.ID = cmp.Or(t.Schema, Schema), idOf(identity)
	data, err := canonical(t, "trace")
	if err != nil {
		return nil, err
	}
	if err := checkShape(data); err != nil {
		return nil, fmt.Errorf("encode trace: %w", err)
	}
	if len(data) >= MaxSize {
		return nil, fmt.Errorf("encode trace: it has %d bytes, the limit is %d", len(data)+1, MaxSize)
	}
	return append(data, '\n'), nil
}
