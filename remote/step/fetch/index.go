package fetch

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// keyOf returns a file name of the cache for parts. It is a digest, because the parts may be private.
func keyOf(parts ...string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(parts, "\x00"))))
}

// entry is the component of a source that never changes: a commit, an archive of a known digest, or a manifest.
type entry struct {
	Source Source `json:"source"`
	// Private says that the server asked for credentials.
	Private bool `json:"private,omitempty"`
	// Git proves that the files are those of the commit. It is nil for other components.
	Git *gitProof `json:"git,omitempty"`
}

// answer is a server's answer about a name whose target can change.
type answer struct {
	// Asked is the time of the question, in nanoseconds since 1970.
	Asked int64 `json:"asked"`
	// Is is a commit, a digest, or the URL of a repository.
	Is string `json:"is"`
	// Ref is the full name of the ref (git), or the ETag of the archive (zip).
	Ref string `json:"ref,omitempty"`
}

// within reports whether the answer is younger than t. An answer from the future comes from a wrong clock, and does not
// count.
func (a answer) within(t time.Time) bool {
	return a.Asked >= t.UnixNano() && a.Asked <= time.Now().UnixNano()
}

// read reads a file of the cache into v. It reports false for a missing or damaged file.
func (c *cache) read(dir, key string, v any) bool {
	data, err := os.ReadFile(c.path(dir, key))
	return err == nil && json.Unmarshal(data, v) == nil
}

// write writes v to a file of the cache, atomically.
func (c *cache) write(dir, key string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	tmp, err := c.scratch()
	if err != nil {
		return err
	}
	defer tmp.remove()
	path := filepath.Join(tmp.path, key)
	if err = os.WriteFile(path, data, 0o600); err == nil {
		err = os.Rename(path, c.path(dir, key))
	}
	if err != nil {
		return fmt.Errorf("write to cache: %w", err)
	}
	return nil
}
