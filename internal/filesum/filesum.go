// Package filesum has the digests of regular files. It owns nothing.
package filesum

import (
	"crypto/sha256"
	"fmt"
	"io"

	"github.com/stepmux/stepmux/internal/boundedfile"
)

// SHA256 returns the SHA-256 of a regular file, in hexadecimal.
func SHA256(open boundedfile.Opener, name string) (string, error) {
	file, err := boundedfile.Open(open, name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}
