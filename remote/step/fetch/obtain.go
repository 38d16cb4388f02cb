package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const digestPrefix = "sha256:"

// find returns the entry of key. Its component may have been removed.
func (f *fetcher) find(key string) (entry, bool) {
	var e entry
	return e, f.cache.read(indexDir, key, &e) && e.Source.Tree != ""
}

// fillFunc writes the files of a component to w. It may use the scratch directory tmp.
type fillFunc func(w *treeWriter, tmp *scratch) (Source, error)

// obtain returns the component of key, from the cache or by fill. If several processes need it, one fills it and the
// others wait. The caller has checked that it may have the component.
func (f *fetcher) obtain(ctx context.Context, key string, private bool, fill fillFunc) (*Component, error) {
	c, err := f.once(ctx, key, func() (*Component, error) { return f.cached(ctx, key) },
		func() (*Component, error) { return f.add(ctx, key, private, fill) })
	if err == nil && !c.Cached {
		f.cache.shrink()
	}
	return c, err
}

// once returns the component of have or, if that is nil, the component of get. If several processes wait for the same
// key, one calls get.
func (f *fetcher) once(ctx context.Context, key string, have, get func() (*Component, error)) (*Component, error) {
	var c *Component
	var err error
	unlock, lockErr := f.cache.lock(ctx, key, func() bool {
		c, err = have()
		return c != nil || err != nil
	})
	if unlock == nil {
		return c, cmp.Or(lockErr, err)
	}
	defer unlock()
	if c, err = have(); c != nil || err != nil { // another process may have fetched it just now
		return c, err
	}
	return get()
}

// cached returns the component of key, or nil if the cache does not have it.
func (f *fetcher) cached(ctx context.Context, key string) (*Component, error) {
	e, found := f.find(key)
	if !found {
		return nil, nil
	}
	if e.Source.Kind == kindGit && keyOf(kindGit, e.Source.Location, e.Git.named(e.Source.Commit)) != key {
		return nil, nil // the index claims another commit
	}
	c, err := f.cache.component(ctx, e)
	if c == nil || err != nil {
		return nil, err
	}
	if c.Kind == kindGit {
		err = f.cache.prove(e.Source.Tree, e.Source, e.Git)
	}
	if err != nil {
		c.Release()
		if errors.Is(err, errDamaged) { // it is fetched again, and replaces the entry
			err = nil
		}
		return nil, err
	}
	c.Cached = true
	return c, nil
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
	nodes, err := w.finish(ctx)
	if err != nil {
		return nil, fmt.Errorf("write to cache: %w", err)
	}
	if source.Kind == kindGit { // before it is published, so that a refused component leaves no files
		if err := w.git.check(filepath.Join(dir, treeName), nodes, source); err != nil {
			return nil, fmt.Errorf("check the files against the commit %s: %w", source.Commit, err)
		}
	}
	published, tree, err := f.cache.publish(ctx, dir, nodes)
	if err != nil {
		return nil, fmt.Errorf("write to cache: %w", err)
	}
	source.Tree = tree
	if err := f.record(key, entry{source, private, w.git}); err != nil {
		published.Release()
		return nil, err
	}
	source.Tree = digestPrefix + tree
	published.Source = source
	return published, nil
}

// record makes e the entry of key. The component of a tag object also becomes that of its commit.
func (f *fetcher) record(key string, e entry) error {
	if e.Git != nil {
		f.cache.proved.Store(provedKey(e.Source.Tree, e.Source, e.Git), true)
	}
	if err := f.cache.write(indexDir, key, e); err != nil || e.Git == nil || len(e.Git.Tags) == 0 {
		return err
	}
	e.Git = e.Git.withoutTags()
	return f.record(keyOf(kindGit, e.Source.Location, e.Source.Commit), e)
}
