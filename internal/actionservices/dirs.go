package actionservices

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/internal/filesum"
	"github.com/stepmux/stepmux/internal/rmtree"
)

const (
	// The directory of a cache has these files. Its name begins with cachePrefix.
	cacheFile, cacheContent = "cache.json", "content"
	cachePrefix             = "actions-"
	// scratchPrefix begins the name of a file or directory that is not complete.
	scratchPrefix = "~actions-"
	// maxAbout bounds a cacheFile.
	maxAbout = 8 << 10
	// maxCaches bounds the caches that are looked at.
	maxCaches = 10_000
)

// described is the content of a cacheFile.
type described struct {
	Cache
	Sum string `json:"sum,omitempty"` // the SHA-256 of the content, in hexadecimal
}

// dirs is the Store of a command: artifacts end with it, and caches are in a directory that other processes use, too.
// There is one project.
type dirs struct {
	dir, caches string
	maxCaches   int64

	mu   sync.Mutex // guards the following
	runs map[string]map[string]Artifact
}

// Scratch implements Store, as do the following.
func (d *dirs) Scratch(caches bool) (string, error) {
	if !caches {
		return d.dir, nil
	}
	return d.caches, os.MkdirAll(d.caches, 0o700)
}

// Artifacts returns artifacts.
func (d *dirs) Artifacts(_ context.Context, run string) ([]Artifact, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.runs[run])), nil
}

// KeepArtifact leaves the file where it is.
func (d *dirs) KeepArtifact(
	_ context.Context, run string, a Artifact, file string, replaces func(*Artifact) bool,
) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.runs[run] == nil {
		d.runs[run] = map[string]Artifact{}
	}
	if was, there := d.runs[run][a.Name]; there {
		if !replaces(&was) {
			return fs.ErrExist
		}
		_ = os.Remove(d.path(was.Content)) // its directory goes later
	}
	a.Content = filepath.Base(file)
	d.runs[run][a.Name] = a
	return nil
}

// RemoveArtifact removes the file.
func (d *dirs) RemoveArtifact(_ context.Context, run, name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if a, there := d.runs[run][name]; there {
		delete(d.runs[run], name)
		return os.Remove(d.path(a.Content))
	}
	return nil
}

// path returns the path of a Content: the name of a file among the artifacts, or of a directory among the caches.
func (d *dirs) path(content string) string {
	content = filepath.Base(content)
	if strings.HasPrefix(content, cachePrefix) {
		return filepath.Join(d.caches, content, cacheContent)
	}
	return filepath.Join(d.dir, content)
}

// UseCache sets the time of the directory.
func (d *dirs) UseCache(_ context.Context, _ string, c *Cache) (bool, error) {
	path := d.path(c.Content)
	if _, err := os.Lstat(path); err != nil {
		return false, nil //nolint:nilerr // it is of no use then
	}
	now := time.Now()
	_ = os.Chtimes(filepath.Dir(path), now, now) // another process may have removed it
	return true, nil
}

// Open opens a file. Of a cache it knows the sum.
func (d *dirs) Open(_ context.Context, content string) (file *os.File, sum string, err error) {
	path := d.path(content)
	if file, err = os.Open(path); err != nil {
		return nil, "", err
	}
	var about described
	if text, err := boundedfile.Read(filepath.Join(filepath.Dir(path), cacheFile), maxAbout); err == nil {
		_ = json.Unmarshal(text, &about) // then there is no sum
	}
	return file, about.Sum, nil
}

// nameOf returns the name of the directory of a cache.
func nameOf(c *Cache) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", c.Scope, c.Key, c.Version))
	return cachePrefix + hex.EncodeToString(sum[:16])
}

// Caches lists the directory. Another process may remove caches at any time.
func (d *dirs) Caches(context.Context, string) (all []Cache, err error) {
	for _, c := range d.list() {
		all = append(all, c.Cache)
	}
	return all, nil
}

// stored is a cache in the directory.
type stored struct {
	Cache
	used time.Time
}

func (d *dirs) list() (all []stored) {
	names, err := os.ReadDir(d.caches)
	if err != nil {
		return nil
	}
	for _, name := range names {
		if !strings.HasPrefix(name.Name(), cachePrefix) || len(all) == maxCaches {
			continue
		}
		text, err := boundedfile.Read(filepath.Join(d.caches, name.Name(), cacheFile), maxAbout)
		var c stored
		if err != nil || json.Unmarshal(text, &c.Cache) != nil || nameOf(&c.Cache) != name.Name() {
			continue
		}
		c.Content = name.Name()
		if info, err := name.Info(); err == nil {
			c.used = info.ModTime()
		}
		all = append(all, c)
	}
	return all
}

// KeepCache makes the directory of a cache, and renames it when it is complete.
func (d *dirs) KeepCache(_ context.Context, _ string, c Cache, file string) (sum string, err error) {
	name := nameOf(&c)
	if _, err := os.Lstat(filepath.Join(d.caches, name)); err == nil {
		return "", fs.ErrExist
	}
	dir := filepath.Join(d.caches, scratchPrefix+rand.Text())
	if sum, err = filesum.SHA256(os.OpenFile, file); err != nil {
		return "", err
	}
	text, err := json.Marshal(described{c, sum})
	if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, cacheFile), text, 0o600)
	}
	if err == nil {
		err = os.Rename(file, filepath.Join(dir, cacheContent))
	}
	if err == nil {
		d.makeRoom(c.Size)
		err = os.Rename(dir, filepath.Join(d.caches, name))
	}
	if err != nil {
		_ = rmtree.Remove(dir) // a sweep removes the rest
	}
	return sum, err
}

// makeRoom removes the least recently used caches until there is room for size bytes more.
func (d *dirs) makeRoom(size int64) {
	all := d.list()
	for _, c := range all {
		size += c.Size
	}
	slices.SortFunc(all, func(a, b stored) int {
		return cmp.Or(a.used.Compare(b.used), a.Created.Compare(b.Created))
	})
	for _, c := range all {
		if size <= d.maxCaches {
			return
		}
		scratch := filepath.Join(d.caches, scratchPrefix+rand.Text())
		if os.Rename(filepath.Join(d.caches, c.Content), scratch) == nil {
			_ = rmtree.Remove(scratch) // as in KeepCache
		}
		size -= c.Size
	}
}
