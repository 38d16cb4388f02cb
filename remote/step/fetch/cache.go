package fetch

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/filelock"
	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/rmtree"
)

// The directories of a cache. Their parent is named after the version of this layout.
const (
	layout      = "v1"
	compDir     = "comp"    // components by the digests of their trees
	indexDir    = "index"   // entries: the component of a commit, an archive or an image
	answerDir   = "answers" // answers of servers about names that can change
	lockDir     = "locks"
	scratchBase = "tmp"
)

// cache is a directory that all processes of this user share.
type cache struct {
	dir      string
	maxBytes int64
	verified sync.Map // the stamps of trees whose digest was compared, by their names
	proved   sync.Map // proved pairs of commits and trees, see prove
}

// openCache opens the cache in dir. It makes the cache if it is missing, and removes the scratch directories of dead
// processes.
func openCache(dir string, maxBytes int64) (*cache, error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("create %s: %w", dir, oserr.Bare(err))
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return nil, err
	}
	if err := checkOwner(dir, info); err != nil {
		return nil, err
	}
	if info.Mode().Perm() != 0o700 {
		if err := os.Chmod(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make %s private: %w", dir, oserr.Bare(err))
		}
	}
	c := &cache{dir: filepath.Join(dir, layout), maxBytes: maxBytes}
	for _, name := range []string{compDir, indexDir, answerDir, lockDir, scratchBase} {
		if err := os.MkdirAll(c.path(name), 0o700); err != nil {
			return nil, fmt.Errorf("create %s: %w", c.path(name), oserr.Bare(err))
		}
	}
	_ = c.sweep() // the next sweep tries again
	return c, nil
}

// checkOwner refuses a directory that another user could change.
func checkOwner(dir string, info fs.FileInfo) error {
	owner := info.Sys().(*syscall.Stat_t).Uid
	if owner != uint32(os.Geteuid()) {
		return fmt.Errorf("%s belongs to user %d, not to us (user %d); remove it, or use another cache directory", dir, owner,
			os.Geteuid())
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory; remove it, or use another cache directory", dir)
	}
	return nil
}

func (c *cache) path(parts ...string) string {
	return filepath.Join(append([]string{c.dir}, parts...)...)
}

// scratch is a locked directory for temporary files, in the file system of the cache. Child processes that inherit the
// lock also protect the directory from a sweep.
type scratch struct {
	path string
	lock *os.File
}

// scratch makes a scratch directory. The caller removes it.
func (c *cache) scratch() (*scratch, error) {
	for {
		path := c.path(scratchBase, rand.Text())
		if err := os.Mkdir(path, 0o700); err != nil {
			return nil, fmt.Errorf("create scratch directory: %w", err)
		}
		dir, err := filelock.Claim(path)
		switch {
		case err == nil:
			return &scratch{path, dir}, nil
		case !errors.Is(err, filelock.ErrTaken): // ErrTaken: a sweep locked it first
			return nil, fmt.Errorf("lock scratch directory: %w", err)
		}
	}
}

func (s *scratch) remove() {
	_ = rmtree.Remove(s.path) // the next sweep tries again
	filelock.Release(s.lock)
}

// sweep removes the scratch directories that no process has locked. After an error it goes on with the others.
func (c *cache) sweep() error {
	entries, err := os.ReadDir(c.path(scratchBase))
	failures := []error{err}
	for _, e := range entries {
		path := c.path(scratchBase, e.Name())
		dir, err := filelock.Claim(path)
		if err == nil {
			err = rmtree.Remove(path)
			filelock.Release(dir)
		}
		if err != nil && !errors.Is(err, filelock.ErrTaken) {
			failures = append(failures, fmt.Errorf("remove %s: %w", path, err))
		}
	}
	return errors.Join(failures...)
}

// lock waits for the lock of key. If ready reports true before that, it returns without the lock, and unlock is nil.
func (c *cache) lock(ctx context.Context, key string, ready func() bool) (unlock func(), err error) {
	path := c.path(lockDir, key)
	err = pause.Until(ctx, func() (bool, error) {
		if ready() {
			return true, nil
		}
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return false, err
		}
		err = filelock.TryWrite(file)
		switch at := filelock.StillAt(file, path); {
		case err == nil && at:
			unlock = func() {
				_ = os.Remove(path) // before the release, so that waiters notice and make another file
				filelock.Release(file)
			}
			return true, nil
		case at && filelock.IsRead(file): // by a job, which cannot write the file: the lock moves to another one
			_ = os.Remove(path)
		}
		file.Close()
		if errors.Is(err, filelock.ErrTaken) {
			err = nil
		}
		return false, err
	})
	if err != nil {
		return nil, fmt.Errorf("wait for another process that is fetching it: %w", err)
	}
	return unlock, nil
}
