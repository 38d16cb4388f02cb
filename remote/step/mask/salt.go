package mask

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/stepmux/stepmux/remote/step/expr"
)

const (
	scheme  = "hmac-sha256" // the only scheme
	saltLen = 32            // bytes
)

// Salt is the key of the HMACs that replace masked values: HMAC-SHA256 with a random salt for each trace.
type Salt struct {
	// Scheme is hmac-sha256.
	Scheme string `json:"scheme"`
	// Salt is random. In JSON it is base64.
	Salt []byte `json:"salt"`
}

// NewSalt returns a new Salt.
func NewSalt() *Salt {
	salt := make([]byte, saltLen)
	_, _ = rand.Read(salt) // never fails
	return &Salt{Scheme: scheme, Salt: salt}
}

// Check returns an error if s has another scheme, or a salt of another length.
func (s *Salt) Check() error {
	if s.Scheme != scheme || len(s.Salt) != saltLen {
		return fmt.Errorf("the trace's secrets do not use %s with a salt of %d bytes", scheme, saltLen)
	}
	return nil
}

// Sum returns the HMAC of text, in hexadecimal. Replace the paths of a text by markers first.
func (s *Salt) Sum(text string) string {
	h := hmac.New(sha256.New, s.Salt)
	_, _ = h.Write([]byte(text)) // never fails
	return hex.EncodeToString(h.Sum(nil))
}

// Text masks text.
func (s *Salt) Text(text string) Text { return Text{Masked: true, HMAC: s.Sum(text)} }

// Value masks v. A string has the same HMAC as a Text.
func (s *Salt) Value(v expr.Value) Value {
	return Value{Masked: true, HMAC: s.Sum(v.Text()), Type: v.Kind().String()}
}
