package trace

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/gowebpki/jcs"

	"github.com/stepmux/stepmux/remote/step/mask"
)

// Canonical returns the identity in its canonical form: JSON as RFC 8785 has it.
func (i *Identity) Canonical() ([]byte, error) {
	data, err := json.Marshal(i)
	if err != nil {
		return nil, fmt.Errorf("encode identity: %w", err)
	}
	data, err = jcs.Transform(data)
	if err != nil {
		return nil, fmt.Errorf("encode identity: %w", err)
	}
	return data, nil
}

// idOf returns the id of an identity in its canonical form.
func idOf(canonical []byte) string {
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:])
}

// Encode sets t's id, and its schema if that is empty, and returns t in the canonical JSON of RFC 8785, with a
// newline.
func (t *Trace) Encode() ([]byte, error) {
	canonical, err := t.Identity.Canonical()
	if err != nil {
		return nil, err
	}
	t.Schema, t.ID = cmp.Or(t.Schema, Schema), idOf(canonical)
	data, err := json.Marshal(struct {
		Schema   string          `json:"schema"`
		ID       string          `json:"id"`
		Identity json.RawMessage `json:"identity"`
		Volatile *Volatile       `json:"volatile"`
		Secrets  *mask.Salt      `json:"secrets,omitempty"`
	}{t.Schema, t.ID, canonical, &t.Volatile, t.Secrets})
	if err != nil {
		return nil, fmt.Errorf("encode trace: %w", err)
	}
	if data, err = jcs.Transform(data); err != nil {
		return nil, fmt.Errorf("encode trace: %w", err)
	}
	if len(data) >= MaxSize {
		return nil, fmt.Errorf("encode trace: it has %d bytes, the limit is %d", len(data)+1, MaxSize)
	}
	return append(data, '\n'), nil
}
