package carry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/stepmux/stepmux/remote/archive"
	"github.com/stepmux/stepmux/remote/jobcache"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// CacheDir is the directory of the caches of a project on this machine: that of [Local.CachesDir].
type CacheDir string

// Open makes the directory, and removes caches that were not used for a long time.
func (d CacheDir) Open(ctx context.Context) error {
	jobcache.Sweep(ctx, filepath.Dir(string(d)))
	return d.make()
}

// make makes the directory.
func (d CacheDir) make() error {
	if d == "" {
		return errors.New("set HOME")
	}
	return os.MkdirAll(string(d), 0o700)
}

// Find opens the archive of a cache. The file is nil if the cache does not exist. The caller closes the file, which
// stays as it is when another job saves the cache.
func (d CacheDir) Find(ctx context.Context, key string) (file *os.File, a Archive, err error) {
	if file, err = jobcache.Open(engine.CacheFile(string(d), key)); err != nil {
		if errors.Is(err, jobcache.ErrMiss) {
			err = nil
		}
		return nil, a, err
	}
	defer func() {
		if err != nil {
			file.Close()
			file = nil
		}
	}()
	sum := sha256.New()
	defer context.AfterFunc(ctx, func() { file.Close() })() // ends the copy
	if a.Size, err = io.Copy(sum, file); err != nil {
		return file, Archive{}, err
	}
	a.Digest = hex.EncodeToString(sum.Sum(nil))
	return file, a, nil
}

// Keep keeps a whole archive as a cache. The file is in the directory, and is renamed.
func (d CacheDir) Keep(key string, file *os.File) error {
	return jobcache.Keep(file, engine.CacheFile(string(d), key))
}

// Copy keeps the archive of an open file as a cache.
func (d CacheDir) Copy(key string, from *os.File, size int64) error {
	return archive.Replace(engine.CacheFile(string(d), key), func(to *os.File) error {
		_, err := io.Copy(to, io.NewSectionReader(from, 0, size))
		return err
	})
}
