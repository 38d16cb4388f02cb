package wire

import (
	"errors"
	"fmt"
)

// MaxBuildID is the longest build ID, in bytes.
const MaxBuildID = 64

// ErrBuildID is wrapped by every error ParseBuildID returns.
var ErrBuildID = errors.New("invalid build ID")

// BuildID names one build within a runner. It becomes a directory name on the VM, so it matches [A-Za-z0-9._-]{1,64}
// and is not "." or "..". The zero value is not valid.
type BuildID string

// ParseBuildID checks s. Its errors quote at most a short prefix of s, which may be hostile.
func ParseBuildID(s string) (BuildID, error) {
	switch {
	case s == "":
		return "", fmt.Errorf("%w: it is empty; use 1 to %d characters of A-Z a-z 0-9 . _ -", ErrBuildID, MaxBuildID)
	case len(s) > MaxBuildID:
		return "", fmt.Errorf("%w %q...: %d bytes, at most %d are allowed", ErrBuildID, s[:16], len(s), MaxBuildID)
	case s == "." || s == "..":
		return "", fmt.Errorf("%w %q: it names a directory, not a build", ErrBuildID, s)
	}
	for i := range len(s) {
		if !buildIDByte(s[i]) {
			return "", fmt.Errorf("%w %q: byte %q at %d; use A-Z a-z 0-9 . _ -", ErrBuildID, s, s[i], i)
		}
	}
	return BuildID(s), nil
}

func buildIDByte(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '.' || b == '_' || b == '-'
}
