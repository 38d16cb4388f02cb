package trace

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"

	"github.com/stepmux/stepmux/remote/step/expr"
)

// scheme is the one way values are summed up.
const scheme = "hmac-sha256"

// saltLen is the length of a salt, in bytes.
const saltLen = 32

// Secrets is how masked values are summed up: HMAC-SHA256 with a salt of the trace's own as the key.
type Secrets struct {
	// Scheme is hmac-sha256.
	Scheme string `json:"scheme"`
	// Salt is random. In JSON it is base64.
	Salt []byte `json:"salt"`
}

// NewSecrets returns Secrets with a new salt.
func NewSecrets() *Secrets {
	salt := make([]byte, saltLen)
	_, _ = rand.Read(salt) // never fails
	return &Secrets{Scheme: scheme, Salt: salt}
}

// Sum is the HMAC of text, in hexadecimal. Of a text that may hold paths it is taken after those were marked.
func (s *Secrets) Sum(text string) string {
	h := hmac.New(sha256.New, s.Salt)
	_, _ = h.Write([]byte(text)) // never fails
	return hex.EncodeToString(h.Sum(nil))
}

// Mask returns what is left of text.
func (s *Secrets) Mask(text string) Text { return Text{Masked: true, HMAC: s.Sum(text)} }

// MaskValue returns what is left of v. A string has the same HMAC as a Text.
func (s *Secrets) MaskValue(v expr.Value) Value {
	return Value{Masked: true, HMAC: s.Sum(v.Text()), Type: v.Kind().String()}
}
