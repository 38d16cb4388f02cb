package fetch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/stepmux/stepmux/internal/filelock"
)

const digestPrefix = "sha256:"

// The values of Source.Kind.
const (
	kindGit = "git"
	kindZip = "zip"
	kindOCI = "oci"
)

// find returns the entry of key. Its component may have been removed.
func (f *fetcher) find(key string) (entry, bool) {
	var e entry
	return e, f.cache.read(indexDir, key, &e) && e.Source.Tree != ""
}

// fillFunc writes the files of a component to w. It may use the scratch directory tmp.
type fillFunc func(w *treeWriter, tmp *scratch) (Source, error)

// obtain returns the component of key, from the cache or by fill. Of all processes that need the component one fills
// it, and the others wait. The caller has checked that it may have the component.
func (f *fetcher) obtain(ctx context.Context, key string, private bool, fill fillFunc) (*Component, error) {
	if c, err := f.cached(ctx, key); c != nil || err != nil {
		return c, err
	}
	var c *Component
	var err error
	unlock, lockErr := f.cache.lock(ctx, key, func() bool {
		c, err = f.cached(ctx, key)
		return c != nil || err != nil
	})
	switch {
	case lockErr != nil:
		return nil, lockErr
	case unlock == nil:
		return c, err
	}
	c, err = f.add(ctx, key, private, fill)
	unlock()
	if err == nil {
		f.cache.shrink()
	}
	return c, err
}

// cached returns the component of key, or nil if the cache does not have it.
func (f *fetcher) cached(ctx context.Context, key string) (*Component, error) {
	e, found := f.find(key)
	if !found {
		return nil, nil
	}
	c, err := f.cache.component(ctx, e)
	if c != nil {
		c.Cached = true
	}
	return c, err
}

// add fills a component and records it as key.
func (f *fetcher) add(ctx context.Context, key string, private bool, fill fillFunc) (*Component, error) {
	tmp, err := f.cache.scratch()
	if err != nil {
		return nil, err
	}
	defer tmp.remove()
	dir := filepath.Join(tmp.path, compDir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	w, err := newTreeWriter(filepath.Join(dir, treeName), f.limits)
	if err != nil {
		return nil, err
	}
	defer w.close()
	source, err := fill(w, tmp)
	if err != nil {
		return nil, err
	}
	held, tree, err := f.cache.publish(ctx, dir, w)
	if err != nil {
		return nil, fmt.Errorf("write to cache: %w", err)
	}
	source.Tree = tree
	if err := f.cache.write(indexDir, key, entry{source, private}); err != nil {
		filelock.Release(held)
		return nil, err
	}
	return f.cache.use(source, held), nil
}
