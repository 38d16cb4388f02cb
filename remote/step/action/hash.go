package action

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/stepmux/stepmux/internal/boundedfile"
)

// maxHashed bounds the files that hashFiles reads.
const maxHashed = 100_000

// hashFiles returns the SHA-256 of the digests of the files below dir that match the patterns, or "" if no file
// matches. A pattern after ! excludes files. It ends early when stopped returns true.
func hashFiles(open boundedfile.Opener, dir string, patterns []string, stopped func() bool) (string, error) {
	var with, without []string
	for _, given := range patterns {
		for line := range strings.Lines(given) {
			p := strings.TrimSpace(line)
			if p == "" || strings.HasPrefix(p, "#") {
				continue
			}
			rest, excluded := strings.CutPrefix(p, "!")
			if !filepath.IsAbs(rest) {
				rest = filepath.Join(dir, rest)
			}
			rel, err := filepath.Rel(dir, rest)
			if err != nil || !filepath.IsLocal(rel) || !doublestar.ValidatePattern(rel) {
				return "", fmt.Errorf("hashFiles: the pattern %.160q is not one of files in the work directory", p)
			}
			if excluded {
				without = append(without, rel)
			} else {
				with = append(with, rel)
			}
		}
	}
	matches := func(list []string, path string) bool {
		for _, p := range list {
			if doublestar.MatchUnvalidated(p, path) || doublestar.MatchUnvalidated(p+"/**", path) {
				return true
			}
		}
		return false
	}
	at, err := open(dir, os.O_RDONLY, 0)
	if err != nil {
		return "", fmt.Errorf("hashFiles: %w", err)
	}
	defer at.Close()
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", at.Fd())) // not by its path, because a step can change that
	if err != nil {
		return "", fmt.Errorf("hashFiles: %w", err)
	}
	defer root.Close()
	sum, count := sha256.New(), 0
	err = fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && stopped() {
			err = errors.New("the job was stopped")
		}
		if err != nil || !d.Type().IsRegular() || !matches(with, path) || matches(without, path) {
			return err
		}
		if count++; count > maxHashed {
			return fmt.Errorf("there are more than %d files", maxHashed)
		}
		text, err := boundedfile.SHA256(root.OpenFile, path)
		if err != nil {
			return err
		}
		own, err := hex.DecodeString(strings.TrimPrefix(text, "sha256:"))
		sum.Write(own)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("hashFiles: %w", err)
	}
	if count == 0 {
		return "", nil
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
