package wire

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
)

const (
	// AuthorizationKey is the metadata of a call that carries the secret of the build.
	AuthorizationKey = "authorization"
	// Bearer precedes the secret in its value (RFC 6750, section 2.1).
	Bearer = "Bearer "

	secretBytes     = 32  // of a new secret, before it is encoded
	minSecretLength = 43  // secretBytes in base64url without padding
	maxSecretLength = 128 // another manager may use longer ones
)

// NoSecret is how a serve says that its stdin ended before the secret came.
const NoSecret = "stdin ended before the secret came"

// MaxSecretLine bounds the line on serve's stdin with the secret, its newline included.
const MaxSecretLine = maxSecretLength + 1

// Secret authorizes a call to the serve of a build. It consists of base64url characters. It never appears in formatted
// text: only Line and Authorization return it.
type Secret struct{ text string }

// NewSecret returns 32 random bytes as a Secret.
func NewSecret() Secret {
	var b [secretBytes]byte
	_, _ = rand.Read(b[:]) // never fails
	return Secret{base64.RawURLEncoding.EncodeToString(b[:])}
}

// ParseSecret returns the secret in line, which has no newline. The error does not quote it.
func ParseSecret(line string) (Secret, error) {
	if len(line) < minSecretLength || len(line) > maxSecretLength {
		return Secret{}, fmt.Errorf(
			"a secret has %d to %d characters, this has %d", minSecretLength, maxSecretLength, len(line),
		)
	}
	for _, c := range []byte(line) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return Secret{}, errors.New("a secret consists of base64url characters (A-Z a-z 0-9 - _), this has others")
		}
	}
	return Secret{line}, nil
}

// IsZero reports whether s is the zero value, which is not a secret.
func (s Secret) IsZero() bool { return s.text == "" }

// Line returns the secret with a newline, as serve reads it from its stdin.
func (s Secret) Line() []byte { return []byte(s.text + "\n") }

// Authorization returns the value with the secret for the metadata key AuthorizationKey.
func (s Secret) Authorization() string { return Bearer + s.text }

// String hides the secret, from logs too.
func (s Secret) String() string { return "[secret]" }

// GoString hides the secret.
func (s Secret) GoString() string { return s.String() }

// Verifier recognizes a secret without holding it: it is a hash.
type Verifier [sha256.Size]byte

// Verifier returns the Verifier of s.
func (s Secret) Verifier() Verifier { return sha256.Sum256([]byte(s.text)) }

// Admits reports whether authorization, the values under AuthorizationKey in a call, is exactly one value with the
// right secret. It takes the same time for every wrong secret of the same length.
func (v Verifier) Admits(authorization []string) bool {
	if len(authorization) != 1 {
		return false
	}
	text, ok := strings.CutPrefix(authorization[0], Bearer)
	sum := sha256.Sum256([]byte(text))
	return subtle.ConstantTimeCompare(v[:], sum[:]) == 1 && ok
}
