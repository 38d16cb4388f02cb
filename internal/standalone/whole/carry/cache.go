package carry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/remote/archive"
	"github.com/stepmux/stepmux/remote/jobcache"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/transfer"
)

// quiet takes the messages of package jobcache, which are about servers.
var quiet = transfer.Log{To: io.Discard}

// restore restores the caches of an attempt in its directory, which has only the files of the project, and sets their
// names. As with GitLab, a cache that cannot be restored is told, and the job runs without it.
func (l Local) restore(ctx context.Context, dir string, a *Attempt) error {
	caches, tell := a.Caches, a.Say
	switch err := CacheDir(l.CachesDir).make(); {
	case len(caches) == 0:
		return nil
	case err != nil:
		a.SayOnce(fmt.Sprintf("caches: there is no directory for them: %v", err))
		a.Caches = nil
		return nil
	}
	for i := range caches {
		c := &caches[i]
		if err := c.name(ctx, dir); err != nil {
			return err
		}
		if !c.Pull {
			continue
		}
		found := false
		for _, key := range append([]string{c.Key}, c.Fallback...) {
			err := jobcache.Restore(ctx, nil, jobcache.RestoreConfig{
				Dir: dir, File: engine.CacheFile(l.CachesDir, key), Bounds: archive.Bounds{OutsideLinks: true}, Log: quiet,
			})
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case errors.Is(err, jobcache.ErrMiss):
				continue
			case err != nil:
				tell(fmt.Sprintf("cache %q is not restored: %v", key, err))
			default:
				tell(fmt.Sprintf("cache %q is restored", key))
			}
			found = true
			break
		}
		if !found {
			tell(fmt.Sprintf("cache %q does not exist yet", c.Key))
		}
	}
	return nil
}

// name sets the key to the whole name of the cache.
func (c *Cache) name(ctx context.Context, dir string) error {
	if len(c.Files) == 0 {
		return nil
	}
	digest, err := digestOf(ctx, dir, c.Files)
	if err != nil {
		return err
	}
	c.append(digest)
	return nil
}

// append sets the key to the whole name of the cache.
func (c *Cache) append(digest string) {
	if c.Key != "" {
		digest = c.Key + "-" + digest
	}
	c.Key, c.Files = digest, nil
}

// digestOf returns the end of the name of a cache whose key is of files.
func digestOf(ctx context.Context, dir string, patterns []string) (digest string, err error) {
	digest = "default"
	found, err := archive.Find(ctx, archive.Selection{
		Dir: dir, Paths: patterns, Info: func(string) {}, Warn: func(string) {},
	})
	if err != nil {
		return "", err
	}
	defer found.Close()
	sum := sha256.New()
	for _, name := range found.Names() {
		file, err := boundedfile.Open(found.Root().OpenFile, name)
		if err != nil {
			continue // a directory, or a link that leads outside
		}
		fmt.Fprintf(sum, "%q\n", name)
		_, err = io.Copy(sum, file)
		file.Close()
		if err != nil {
			return "", fmt.Errorf("read %s: %w", name, err)
		}
		digest = hex.EncodeToString(sum.Sum(nil))
	}
	return digest, nil
}

// save saves the caches of a job that has ended. One that cannot be saved is told.
func (l Local) save(ctx context.Context, dir string, a *Attempt, report *standalone.Report) error {
	for _, c := range a.Caches {
		if !c.Push || !c.When.holds(report) {
			continue
		}
		selection := a.selection(dir, c.Paths, c.Untracked, func(text string) { a.Say("cache: " + text) })
		err := jobcache.Save(ctx, nil, jobcache.SaveConfig{
			Files: selection, File: engine.CacheFile(l.CachesDir, c.Key), Caches: filepath.Dir(l.CachesDir),
			Format: archive.TarZstd, Level: level, Log: quiet,
		})
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, jobcache.ErrNoFiles):
			a.Say(fmt.Sprintf("cache %q is not saved: no file matches", c.Key))
		case err != nil:
			a.Say(fmt.Sprintf("cache %q is not saved: %v", c.Key, err))
		default:
			a.Say(fmt.Sprintf("cache %q is saved", c.Key))
		}
	}
	return nil
}
