package carry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/remote/archive"
)

// Elsewhere brings caches to jobs that run on other machines. The zero value is ready to use. It is safe for concurrent
// use.
type Elsewhere struct {
	mu      sync.Mutex        // guards the following; held while the project is unpacked
	digests map[string]string // of the files of keys, by the project and the patterns
}

// Kept is a cache of a job that runs elsewhere.
type Kept struct {
	*Cache
	// Found is the archive to unpack before the job starts, and From its name: that of the cache, or a fallback. Both may
	// be zero.
	Found Archive
	From  string
}

// Find finds the caches of an attempt, and sets their names. project opens the archive of the project. find returns the
// archive with a name, or a zero one if no archive has the name. As with GitLab, one that cannot be found is told, and
// the job runs without it. An error is the end of ctx.
func (e *Elsewhere) Find(
	ctx context.Context, a *Attempt, project func(context.Context) (*os.File, error),
	find func(ctx context.Context, key string) (Archive, error),
) (all []Kept, err error) {
	for i := range a.Caches {
		c := &a.Caches[i]
		if err := e.name(ctx, a, c, project); err != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			a.Say(fmt.Sprintf("the job runs without the cache %q, whose key cannot be found: %v", c.Key, err))
			continue
		}
		k := Kept{Cache: c}
		if c.Pull {
			if err := k.find(ctx, a, find); err != nil {
				return nil, err
			}
		}
		all = append(all, k)
	}
	return all, nil
}

// find sets Found and From.
func (k *Kept) find(ctx context.Context, a *Attempt, find func(context.Context, string) (Archive, error)) error {
	for _, key := range append([]string{k.Key}, k.Fallback...) {
		found, err := find(ctx, key)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			a.Say(fmt.Sprintf("cache %q is not restored: %v", key, err))
			return nil
		case !found.IsZero():
			k.Found, k.From = found, key
			return nil
		}
	}
	a.Say(fmt.Sprintf("cache %q does not exist yet", k.Key))
	return nil
}

// Wanted reports whether the cache is saved after a job, if that succeeded or failed.
func (k *Kept) Wanted(succeeded bool) bool { return k.When.after(succeeded) }

// IsSaved reports whether the cache is to be saved after some outcome.
func (k *Kept) IsSaved() bool { return k.Push && (len(k.Paths) > 0 || k.Untracked) }

// Result returns the line about a cache that was saved, or not because of err.
func Result(key string, err error) string {
	if err == nil {
		return fmt.Sprintf("cache %q is saved", key)
	}
	return fmt.Sprintf("cache %q is not saved: %v", key, err)
}

// name sets the name of a cache.
func (e *Elsewhere) name(
	ctx context.Context, a *Attempt, c *Cache, project func(context.Context) (*os.File, error),
) (err error) {
	if len(c.Files) == 0 {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	id := a.Archives[0].Digest + "\n" + strings.Join(c.Files, "\n")
	if known, ok := e.digests[id]; ok {
		c.append(known)
		return nil
	}
	dir, err := os.MkdirTemp(a.TempDir, "key-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rmtree.Remove(dir)) }()
	if !a.Archives[0].IsZero() {
		from, err := project(ctx)
		if err != nil {
			return err
		}
		defer from.Close()
		if _, err := archive.Extract(ctx, from, dir, archive.Bounds{}); err != nil {
			return err
		}
	}
	digest, err := digestOf(ctx, dir, c.Files)
	if err != nil {
		return err
	}
	if e.digests == nil {
		e.digests = map[string]string{}
	}
	e.digests[id] = digest
	c.append(digest)
	return nil
}
