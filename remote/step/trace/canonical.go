package trace

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
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
// newline. If t is larger than a trace can be, it leaves out large data of steps, which it marks as truncated, those at
// the end first, and then the outputs and exports of the job; a warning of t says so.
func (t *Trace) Encode() ([]byte, error) { return t.encodeWithin(maxValues, MaxSize) }

// encodeWithin is Encode with other limits.
func (t *Trace) encodeWithin(values, size int) ([]byte, error) {
	data, err := t.encode(values, size)
	for _, cut := range []func() string{t.cutLastHalf, t.cutSteps, t.cutResults} {
		tooLarge, is := errors.AsType[sizeError](err)
		if !is {
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
			sizeError(fmt.Sprintf("it has %d bytes, the limit is %d", len(data)+1, size)))
	}
	return append(data, '\n'), nil
}
