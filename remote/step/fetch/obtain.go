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

// find returns the entry of key, if there is one of which the component may be there.
func (f *fetcher) find(key string) (entry, bool) {
	var e entry
	return e, f.cache.read(indexDir, key, &e) && e.Source.Tree != ""
}

// obtain returns the component of key: from the cache or, if it is not there, by fill, which writes it to w and has the
// scratch directory for what else it needs. Of all processes that need it one fills, and the others wait. Whoever calls
// may have it.
func (f *fetcher) obtain(ctx context.Context, key string, private bool, fill func(w *treeWriter, aside *scratch) (Source, error)) (*Component, error) {
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

// cached returns the component of key if it is in the cache.
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

// add fills a component and takes note of it as key.
func (f *fetcher) add(ctx context.Context, key string, private bool, fill func(w *treeWriter, aside *scratch) (Source, error)) (*Component, error) {
	aside, err := f.cache.scratch()
	if err != nil {
		return nil, err
	}
	defer aside.remove()
	dir := filepath.Join(aside.path, compDir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	w, err := newTreeWriter(filepath.Join(dir, treeName), f.limits)
	if err != nil {
		return nil, err
	}
	defer w.close()
	source, err := fill(w, aside)
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
