package manager

import (
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/stepmux/stepmux/internal/privatefile"
)

// keySize is the length of a key file, in bytes.
const keySize = 32

// seal keeps secrets: requests are sealed before they enter a stream, and the secrets of builds are derived, so that
// they are stored nowhere.
type seal struct {
	aead    cipher.AEAD
	secrets []byte
}

// openSeal reads a key file, or makes one.
func openSeal(file string) (*seal, error) {
	key, err := privatefile.Open(file, keySize, newKey)
	if key, err = checkKey(file, key, err); err != nil {
		return nil, err
	}
	derive := func(use string) []byte {
		derived, err := hkdf.Key(sha256.New, key, nil, "stepmux manager: "+use, keySize)
		if err != nil {
			panic("BUG: derive a key: " + err.Error()) // only lengths can be wrong
		}
		return derived
	}
	aead, err := chacha20poly1305.NewX(derive("requests"))
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	return &seal{aead, derive("secrets of builds")}, nil
}

func newKey() ([]byte, error) {
	key := make([]byte, keySize)
	_, _ = rand.Read(key) // never fails
	return key, nil
}

// checkKey returns the text of a key file, which was read with err.
func checkKey(file string, key []byte, err error) ([]byte, error) {
	if err == nil && len(key) != keySize {
		err = fmt.Errorf("%s is not a file of %d bytes", file, keySize)
	}
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	return key, nil
}

// close seals a text for a use. Only open with the same use opens it.
func (s *seal) close(use string, text []byte) []byte {
	nonce := make([]byte, s.aead.NonceSize(), s.aead.NonceSize()+len(text)+s.aead.Overhead())
	_, _ = rand.Read(nonce) // never fails
	return s.aead.Seal(nonce, nonce, text, []byte(use))
}

func (s *seal) open(use string, sealed []byte) ([]byte, error) {
	if len(sealed) < s.aead.NonceSize() {
		return nil, errors.New("it was cut off")
	}
	n := s.aead.NonceSize()
	return s.aead.Open(nil, sealed[:n], sealed[n:], []byte(use))
}

// secret returns the secret of a build's step runner.
func (s *seal) secret(build string) string {
	mac := hmac.New(sha256.New, s.secrets)
	mac.Write([]byte(build))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}
