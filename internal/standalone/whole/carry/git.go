package carry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/stepmux/stepmux/internal/standalone/checkout"
)

// Repositories gives each job a repository of its own. One that a job did not touch is that of a later job: most jobs
// do not, and for them nothing is copied. It is safe for concurrent use.
type Repositories struct {
	from  checkout.Copy
	paths []string // of the files and directories of a repository, in the directory of a job
	dir   string   // for those that no job has

	mu   sync.Mutex // guards the following
	free []repository
	made int
}

// repository is one that no job has. before are the stamps of its paths.
type repository struct {
	path   string
	before []stamp
}

// NewRepositories returns repositories equal to from, which may be empty. Those that no job has are in dir, until the
// caller removes it.
func NewRepositories(from checkout.Copy, dir string) *Repositories {
	r := &Repositories{from: from, dir: dir}
	for _, name := range from.Names {
		for ; name != "."; name = path.Dir(name) {
			r.paths = append(r.paths, name)
		}
	}
	r.paths = slices.Compact(slices.Sorted(slices.Values(r.paths)))
	return r
}

// give puts a repository into the directory of a job. The caller calls back when the job has ended: it takes the
// repository out of the directory if it is as it was.
func (r *Repositories) give(ctx context.Context, dir string) (back func(), err error) {
	if r == nil || len(r.paths) == 0 {
		return func() {}, nil
	}
	top := filepath.Join(dir, r.paths[0])
	own, kept := r.take()
	if kept {
		if err = os.Rename(own.path, top); err == nil {
			own.before[0], err = stampOf(top) // another one in another place
		}
	} else {
		if err = r.from.Into(ctx, dir); err == nil {
			own.before, err = r.stamps(dir)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("make the .git of the job: %w", err)
	}
	return func() {
		if now, err := r.stamps(dir); err == nil && slices.Equal(own.before, now) {
			r.keep(top, own)
		}
	}, nil
}

// take returns a repository that no job has, if there is one.
func (r *Repositories) take() (own repository, kept bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.free)
	if n == 0 {
		return own, false
	}
	own, r.free = r.free[n-1], r.free[:n-1]
	return own, true
}

// keep keeps the repository at a path for a later job. If that fails, it is removed with its directory.
func (r *Repositories) keep(from string, own repository) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made++
	if own.path == "" {
		own.path = filepath.Join(r.dir, fmt.Sprintf("git-%d", r.made))
	}
	if os.Rename(from, own.path) == nil {
		r.free = append(r.free, own)
	}
}

// stamp changes when a file does, and that of a directory when a name in it does: no user can set the time of the last
// change.
type stamp struct {
	mode    fs.FileMode
	size    int64
	inode   uint64
	changed syscall.Timespec
}

// errOther is the error for a file of which there is no stamp.
var errOther = errors.New("the file has no inode")

// stamps returns the stamps of the paths of a repository.
func (r *Repositories) stamps(dir string) (all []stamp, err error) {
	for _, name := range r.paths {
		s, err := stampOf(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

func stampOf(file string) (s stamp, err error) {
	info, err := os.Lstat(file)
	if err != nil {
		return s, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return s, errOther
	}
	return stamp{info.Mode(), info.Size(), stat.Ino, stat.Ctim}, nil
}
