// Package seal keeps the secrets of a manager and its builds.
//
// A [Key] is read from a file, or made. Requests are sealed with it before they enter a stream, and the secrets of
// builds are derived from it, so that they are stored nowhere.
package seal

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

// size is the length of a key file, in bytes.
const size = 32

// Key seals texts, and derives secrets. It is safe for concurrent use.
type Key struct {
	aead    cipher.AEAD
	secrets []byte
}

// OpenKey reads a key file, or makes one.
func OpenKey(file string) (*Key, error) {
	key, err := privatefile.Open(file, size, newKey)
	if key, err = check(file, key, err); err != nil {
		return nil, err
	}
	derive := func(use string) []byte {
		derived, err := hkdf.Key(sha256.New, key, nil, "stepmux manager: "+use, size)
		if err != nil {
			panic("BUG: derive a key: " + err.Error()) // only lengths can be wrong
		}
		return derived
	}
	aead, err := chacha20poly1305.NewX(derive("requests"))
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	return &Key{aead, derive("secrets of builds")}, nil
}

// CheckKey returns why OpenKey would fail for a file, and makes nothing. The directory dir may be made before.
func CheckKey(file, dir string) error {
	key, err := privatefile.Preview(file, dir, size, newKey)
	_, err = check(file, key, err)
	return err
}

func newKey() ([]byte, error) {
	key := make([]byte, size)
	_, _ = rand.Read(key) // never fails
	return key, nil
}

// check returns the text of a key file, which was read with err.
func check(file string, key []byte, err error) ([]byte, error) {
	if err == nil && len(key) != size {
		err = fmt.Errorf("%s is not a file of %d bytes", file, size)
	}
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	return key, nil
}

// Seal seals a text for a use. Only Open with the same use opens it.
func (k *Key) Seal(use string, text []byte) []byte {
	nonce := make([]byte, k.aead.NonceSize(), k.aead.NonceSize()+len(text)+k.aead.Overhead())
	_, _ = rand.Read(nonce) // never fails
	return k.aead.Seal(nonce, nonce, text, []byte(use))
}

// Open returns a text that was sealed for a use.
func (k *Key) Open(use string, sealed []byte) ([]byte, error) {
	if len(sealed) < k.aead.NonceSize() {
		return nil, errors.New("the sealed text was cut off")
	}
	n := k.aead.NonceSize()
	return k.aead.Open(nil, sealed[:n], sealed[n:], []byte(use))
}

// Secret returns the secret of a build's step runner.
func (k *Key) Secret(build string) string {
	mac := hmac.New(sha256.New, k.secrets)
	mac.Write([]byte(build))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}
