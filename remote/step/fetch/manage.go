package fetch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/filelock"
)

// Cached is a component in the cache of a [Store].
type Cached struct {
	// Tree is the digest of its files, as in [Source].
	Tree string `json:"tree"`
	// Sources are the commits, archives and images that have these files, as far as the cache knows.
	Sources []Source `json:"sources,omitempty"`
	// Bytes is its size.
	Bytes int64 `json:"bytes"`
	// Used is the time of the last use, to the minute. It is zero if the cache does not know it.
	Used time.Time `json:"used,omitzero"`
	// InUse says that a job uses it, so that it cannot be removed.
	InUse bool `json:"in_use,omitempty"`
}

// name is the name of the component's directory.
func (c Cached) name() string { return strings.TrimPrefix(c.Tree, digestPrefix) }

// existing returns the cache, or nil if it does not exist.
func (s *Store) existing() (*cache, error) {
	if _, err := os.Lstat(s.cfg.Dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return s.open()
}

// List returns the components in the cache, the least recently used first. It does not create a missing cache.
func (s *Store) List() ([]Cached, error) {
	c, err := s.existing()
	if c == nil || err != nil {
		return nil, err
	}
	sources, err := c.sources()
	if err != nil {
		return nil, err
	}
	all, _, err := c.list()
	for i := range all {
		all[i].Sources = sources[all[i].name()]
		meta, err := filelock.ClaimWrite(c.path(compDir, all[i].name(), metaName))
		if err == nil {
			filelock.Release(meta)
		}
		_, there := os.Lstat(c.path(compDir, all[i].name(), metaName))
		all[i].InUse = errors.Is(err, filelock.ErrTaken) && there == nil
	}
	return all, err
}

// Prune removes the components that no job uses and that were not used for the time unused. It returns the removed
// ones. It also removes the files of dead processes. After an error it goes on with the next component.
func (s *Store) Prune(ctx context.Context, unused time.Duration) (removed []Cached, err error) {
	c, err := s.existing()
	if c == nil || err != nil {
		return nil, err
	}
	all, err := s.List()
	failures := []error{err}
	before := time.Now().Add(-unused)
	for _, one := range all {
		switch {
		case ctx.Err() != nil:
			return removed, context.Cause(ctx)
		case one.InUse || one.Used.After(before):
			continue
		}
		switch err := c.evict(one.name()); {
		case err == nil:
			removed = append(removed, one)
		case !errors.Is(err, filelock.ErrTaken): // ErrTaken: a job has begun to use it
			failures = append(failures, fmt.Errorf("remove %s: %w", c.path(compDir, one.name()), err))
		}
	}
	c.forget()
	return removed, errors.Join(append(failures, c.sweep())...)
}

// Verify compares all components with their digests, and removes the changed ones. It returns them. A component with
// InUse stays, because a job uses it.
func (s *Store) Verify(ctx context.Context) (changed []Cached, err error) {
	c, err := s.existing()
	if c == nil || err != nil {
		return nil, err
	}
	all, err := s.List()
	failures := []error{err}
	for _, one := range all {
		err := c.check(ctx, one.name())
		switch {
		case ctx.Err() != nil:
			return changed, context.Cause(ctx)
		case errors.Is(err, errDamaged):
			err = c.evict(one.name())
			one.InUse = errors.Is(err, filelock.ErrTaken)
			changed = append(changed, one)
		}
		if err != nil && !errors.Is(err, filelock.ErrTaken) {
			failures = append(failures, fmt.Errorf("verify %s: %w", c.path(compDir, one.name()), err))
		}
	}
	return changed, errors.Join(append(failures, c.sweep())...)
}

// check compares a component with its digest. The error is errDamaged if the files were changed.
func (c *cache) check(ctx context.Context, tree string) error {
	file, err := c.hold(ctx, tree)
	if err != nil {
		return err
	}
	if file == nil {
		if _, err := os.Lstat(c.path(compDir, tree)); err != nil {
			return nil // another process has removed it
		}
		return errDamaged
	}
	defer filelock.Release(file)
	err = c.verify(ctx, tree, file)
	if errors.Is(err, filelock.ErrTaken) {
		return nil // another process has removed it
	}
	return err
}

// sources returns the sources of all components, by component name.
func (c *cache) sources() (map[string][]Source, error) {
	entries, err := os.ReadDir(c.path(indexDir))
	all := map[string][]Source{}
	for _, e := range entries {
		var of entry
		if c.read(indexDir, e.Name(), &of) {
			name := of.Source.Tree
			of.Source.Tree = digestPrefix + name
			if !slices.Contains(all[name], of.Source) { // a tag object and its commit have the same source
				all[name] = append(all[name], of.Source)
			}
		}
	}
	return all, err
}

// list returns all components, the least recently used first, and the sum of their sizes.
func (c *cache) list() (all []Cached, total int64, err error) {
	entries, err := os.ReadDir(c.path(compDir))
	for _, e := range entries {
		one := Cached{Tree: digestPrefix + e.Name()}
		if info, err := os.Stat(c.path(compDir, e.Name(), metaName)); err == nil {
			one.Used, one.Bytes = info.ModTime(), info.Size()
		}
		nodes, _ := c.nodes(e.Name()) // a damaged list of nodes is used as far as it goes
		for _, n := range nodes {
			one.Bytes += n.Size
		}
		all, total = append(all, one), total+one.Bytes
	}
	// Not slices.SortFunc: that is compiled again for each type, which costs the VM's end 20 KB.
	sort.Slice(all, func(i, j int) bool { return all[i].Used.Before(all[j].Used) })
	return all, total, err
}
