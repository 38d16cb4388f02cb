package wire

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

const (
	// AuthorizationKey is the metadata of a call that carries the secret of the build.
	AuthorizationKey = "authorization"
	// Bearer stands before the secret there (RFC 6750, section 2.1).
	Bearer = "Bearer "

	secretBytes     = 32  // of a new secret, before it is encoded
	minSecretLength = 43  // of those in base64url without padding
	maxSecretLength = 128 // of another manager's
)

// MaxSecretLine bounds the line on serve's stdin with the secret, its newline included.
const MaxSecretLine = maxSecretLength + 1

// Secret is what each call to the serve of a build must carry. Its characters are those of base64url. It
// appears in no formatted text: only Line and Authorization tell it.
type Secret struct{ text string }

// NewSecret returns 32 random bytes as a Secret.
func NewSecret() Secret {
	var b [secretBytes]byte
	_, _ = rand.Read(b[:]) // never fails
	return Secret{base64.RawURLEncoding.EncodeToString(b[:])}
}

// ParseSecret returns the secret that line holds, without its newline. The error does not quote it.
func ParseSecret(line string) (Secret, error) {
	if len(line) < minSecretLength || len(line) > maxSecretLength {
		return Secret{}, fmt.Errorf(
			"a secret has %d to %d characters, this has %d", minSecretLength, maxSecretLength, len(line),
		)
	}
	for _, c := range []byte(line) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return Secret{}, errors.New("a secret has no characters but those of base64url (A-Z a-z 0-9 - _)")
		}
	}
	return Secret{line}, nil
}

// IsZero reports whether s is the zero value, which is no secret.
func (s Secret) IsZero() bool { return s.text == "" }

// Line returns the secret with a newline, as serve reads it from its stdin.
func (s Secret) Line() []byte { return []byte(s.text + "\n") }

// Authorization returns the value under AuthorizationKey that carries the secret.
func (s Secret) Authorization() string { return Bearer + s.text }

// String hides the secret.
func (s Secret) String() string { return "[secret]" }

// GoString hides the secret.
func (s Secret) GoString() string { return s.String() }

// LogValue hides the secret.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Verifier knows a secret when it sees it, and does not hold it.
type Verifier [sha256.Size]byte

// Verifier returns the Verifier of s.
func (s Secret) Verifier() Verifier { return sha256.Sum256([]byte(s.text)) }

// Admits reports whether authorization, the values of a call under AuthorizationKey, carries the secret: there is
// one and it is the right one. How long that takes tells nothing about the secret.
func (v Verifier) Admits(authorization []string) bool {
	if len(authorization) != 1 {
		return false
	}
	text, ok := strings.CutPrefix(authorization[0], Bearer)
	sum := sha256.Sum256([]byte(text))
	return subtle.ConstantTimeCompare(v[:], sum[:]) == 1 && ok
}
