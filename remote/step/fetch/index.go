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

// keyOf names what consists of parts, for files of the cache: it does not tell them, which may be private.
func keyOf(parts ...string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(parts, "\x00"))))
}

// entry says which component something that never changes is: a commit of a repository, an archive, a manifest.
type entry struct {
	Source Source `json:"source"`
	// Private tells that it was not to be had without credentials.
	Private bool `json:"private,omitempty"`
}

// answer is what a server said of a name that can change.
type answer struct {
	// Asked is when it was asked for, in nanoseconds since 1970.
	Asked int64 `json:"asked"`
	// Is is a commit, a digest, or the URL of a repository.
	Is string `json:"is"`
	// Ref is the ref of the repository that the name is (git), or the tag of a resource (zip).
	Ref string `json:"ref,omitempty"`
	// Private tells that it was not to be had without credentials.
	Private bool `json:"private,omitempty"`
}

// within reports whether the answer was asked for after t. One from the future is of a clock that was wrong.
func (a answer) within(t time.Time) bool {
	return a.Asked >= t.UnixNano() && a.Asked <= time.Now().UnixNano()
}

// read reads a file of the cache into v. What is not there or damaged is as if it had never been.
func (c *cache) read(dir, key string, v any) bool {
	data, err := os.ReadFile(c.path(dir, key))
	return err == nil && json.Unmarshal(data, v) == nil
}

// write writes v to a file of the cache, whole or not at all.
func (c *cache) write(dir, key string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	aside, err := c.scratch()
	if err != nil {
		return err
	}
	defer aside.remove()
	path := filepath.Join(aside.path, key)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return fmt.Errorf("write to cache: %w", err)
	}
	if err := os.Rename(path, c.path(dir, key)); err != nil {
		return fmt.Errorf("write to cache: %w", err)
	}
	return nil
}
