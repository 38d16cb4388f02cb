package wire

import (
	"errors"
	"fmt"
)

// maxBuildID is the longest build ID, in bytes.
const maxBuildID = 64

// errBuildID is wrapped by every error ParseBuildID returns.
var errBuildID = errors.New("invalid build ID")

// BuildID names one build within a runner. It becomes a directory name on the VM, so it matches [A-Za-z0-9._-]{1,64}
// and is not "." or "..". The zero value is not valid.
type BuildID string

// ParseBuildID checks s. Its errors quote at most a short prefix of s, which may be hostile.
func ParseBuildID(s string) (BuildID, error) {
	switch {
	case s == "":
		return "", fmt.Errorf("%w: it is empty; use 1 to %d characters of A-Z a-z 0-9 . _ -", errBuildID, maxBuildID)
	case len(s) > maxBuildID:
		return "", fmt.Errorf("%w %q...: %d bytes, at most %d are allowed", errBuildID, s[:16], len(s), maxBuildID)
	case s == "." || s == "..":
		return "", fmt.Errorf("%w %q: it names a directory, not a build", errBuildID, s)
	}
	for i := range len(s) {
		if !buildIDByte(s[i]) {
			return "", fmt.Errorf("%w %q: byte %q at %d; use A-Z a-z 0-9 . _ -", errBuildID, s, s[i], i)
		}
	}
	return BuildID(s), nil
}

func buildIDByte(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '.' || b == '_' || b == '-'
}
