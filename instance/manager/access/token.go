package access

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"

	"github.com/stepmux/stepmux/internal/privatefile"
)

const (
	// tokenBytes is how many random bytes a token has. The file has them in base64.
	tokenBytes = 32
	// maxToken bounds the file of a token, in bytes.
	maxToken = 4 << 10
)

// Token is the secret that allows a client to use a manager over TCP. It is safe for concurrent use.
type Token struct{ text string }

// OpenToken reads the file of a token, and makes one if it is missing. Only its owner may be able to read the file.
func OpenToken(file string) (*Token, error) {
	return tokenOf(privatefile.Open(file, maxToken, newToken))
}

// CheckToken returns the error of OpenToken, and makes no file. made is a directory that is made before that, or empty.
func CheckToken(file, made string) error {
	_, err := tokenOf(privatefile.Preview(file, made, maxToken, newToken))
	return err
}

func newToken() ([]byte, error) {
	secret := make([]byte, tokenBytes)
	_, _ = rand.Read(secret) // never fails
	return []byte(base64.RawURLEncoding.EncodeToString(secret) + "\n"), nil
}

// ReadToken is OpenToken for an existing file.
func ReadToken(file string) (*Token, error) { return tokenOf(privatefile.Read(file, maxToken)) }

func tokenOf(text []byte, err error) (*Token, error) {
	if err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	text = bytes.TrimSpace(text)
	if len(text) < base64.RawURLEncoding.EncodedLen(tokenBytes) {
		return nil, fmt.Errorf("token file: the token is too short: use %d random bytes in base64, as the manager makes "+
			"them if the file is missing", tokenBytes)
	}
	for _, c := range text {
		if c <= ' ' || c > '~' {
			return nil, fmt.Errorf("token file: the token has characters that are no visible ASCII")
		}
	}
	return &Token{string(text)}, nil
}

// Matches reports whether a text is the token, in constant time.
func (t *Token) Matches(text string) bool {
	a, b := sha256.Sum256([]byte(text)), sha256.Sum256([]byte(t.text))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// Sign returns a signature of a text, which can only be made with the token.
func (t *Token) Sign(text string) string {
	mac := hmac.New(sha256.New, []byte(t.text))
	mac.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}
