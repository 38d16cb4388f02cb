package fetch

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/stepmux/stepmux/internal/filelock"
)

// keepAnswers is how long the cache keeps the answers of servers. An answer that is gone is asked for again.
const keepAnswers = 24 * time.Hour

// stored is a component in the cache.
type stored struct {
	tree  string
	used  time.Time
	bytes int64
}

// shrink removes unused components, the least recently used first, until the cache is within its limit. It does nothing
// while another process does the same. A component that cannot be removed stays for the next attempt.
func (c *cache) shrink() {
	gc, err := filelock.Claim(c.dir)
	if err != nil {
		return
	}
	defer filelock.Release(gc)
	all, total := c.list()
	if total <= c.maxBytes {
		return
	}
	slices.SortFunc(all, func(a, b stored) int { return a.used.Compare(b.used) })
	for _, s := range all {
		if total <= c.maxBytes {
			break
		}
		if c.evict(s.tree) == nil {
			total -= s.bytes
		}
	}
	c.forget()
}

// list returns all components and the sum of their sizes.
func (c *cache) list() (all []stored, total int64) {
	entries, _ := os.ReadDir(c.path(compDir))
	for _, e := range entries {
		path := c.path(compDir, e.Name(), metaName)
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		s := stored{tree: e.Name(), used: info.ModTime(), bytes: bytesOf(path) + info.Size()}
		all, total = append(all, s), total+s.bytes
	}
	return all, total
}

// bytesOf returns the size of a component by its meta.json.
func bytesOf(path string) (total int64) {
	var m meta
	if data, err := os.ReadFile(path); err != nil || json.Unmarshal(data, &m) != nil {
		return 0
	}
	for _, n := range m.Nodes {
		total += n.Size
	}
	return total
}

// forget removes old answers, and the entries of components that were removed.
func (c *cache) forget() {
	entries, _ := os.ReadDir(c.path(indexDir))
	for _, e := range entries {
		var of entry
		if !c.read(indexDir, e.Name(), &of) {
			continue
		}
		if _, err := os.Lstat(c.path(compDir, cmp.Or(of.Source.Tree, "-"))); errors.Is(err, fs.ErrNotExist) {
			_ = os.Remove(c.path(indexDir, e.Name()))
		}
	}
	answers, _ := os.ReadDir(c.path(answerDir))
	for _, a := range answers {
		if info, err := a.Info(); err == nil && time.Since(info.ModTime()) > keepAnswers {
			_ = os.Remove(c.path(answerDir, a.Name()))
		}
	}
}
