package fetch

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/stepmux/stepmux/internal/filelock"
)

// keepAnswers is how long the cache keeps the answers of servers. After that the server is asked again.
const keepAnswers = 24 * time.Hour

// shrink removes unused components, the least recently used first, until the cache is within its limit. It does nothing
// while another process shrinks the cache. A component that cannot be removed stays until the next attempt.
func (c *cache) shrink() {
	gc, err := filelock.Claim(c.dir)
	if err != nil {
		return
	}
	defer filelock.Release(gc)
	all, total, _ := c.list() // components that cannot be listed cannot be removed
	if total <= c.maxBytes {
		return
	}
	for _, one := range all {
		if total <= c.maxBytes {
			break
		}
		if c.evict(one.name()) == nil {
			total -= one.Bytes
		}
	}
	c.forget()
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
