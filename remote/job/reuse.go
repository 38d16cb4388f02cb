package job

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/rmtree"
)

// workName is the name of the work directory in a job's directory.
const workName = "work"

// reuse keeps the directory of a job that left no files in it, for the next job. On some file systems it takes a
// millisecond to make a directory. All jobs of a store belong to the same build.
type reuse struct {
	mu     sync.Mutex // guards the following
	kept   *os.File   // the open directory keptName; nil if there is none
	closed bool
}

// keptName is the name of the kept directory, relative to the directory of all jobs.
const keptName = "../kept"

// keep takes over the open directory dir of a job, whose name in jobs is name, if it has an empty work directory and
// nothing else. It reports whether it did; then the caller must not use dir any more.
func (r *reuse) keep(jobs, dir *os.File, name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.kept != nil || !isUnused(dir) || !isAt(jobs, name, dir) {
		return false
	}
	if unix.Renameat(int(jobs.Fd()), name, int(jobs.Fd()), keptName) != nil {
		return false
	}
	r.kept = dir
	return true
}

// take moves the kept directory to name in jobs, and returns it. It returns nil if there is no kept directory.
func (r *reuse) take(jobs *os.File, name string) *os.File {
	r.mu.Lock()
	dir := r.kept
	r.kept = nil
	r.mu.Unlock()
	if dir == nil {
		return nil
	}
	defer dir.Close()
	if !isUnused(dir) || !isAt(jobs, keptName, dir) ||
		unix.Renameat(int(jobs.Fd()), keptName, int(jobs.Fd()), name) != nil {
		discard(dir) // a job has changed it in the meantime
		return nil
	}
	fd, err := unix.FcntlInt(dir.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		discard(dir)
		return nil
	}
	return os.NewFile(uintptr(fd), filepath.Join(jobs.Name(), name))
}

// close removes the kept directory. It is idempotent.
func (r *reuse) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.kept != nil {
		discard(r.kept)
		r.kept.Close()
		r.kept = nil
	}
}

// discard removes the open directory dir. If that fails, the rest is removed with the build's directory.
func discard(dir *os.File) { _ = rmtree.RemoveOpen(context.Background(), dir) }

// isUnused reports whether the open directory of a job has an empty work directory and nothing else.
func isUnused(dir *os.File) bool { return isFresh(dir, ".", workName) && isFresh(dir, workName) }

// isFresh reports whether name in the open directory dir is a directory as mkdirIn makes it, with exactly these
// entries.
func isFresh(dir *os.File, name string, entries ...string) bool {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(int(dir.Fd()), name, flags, 0)
	if err != nil {
		return false
	}
	at := os.NewFile(uintptr(fd), name)
	defer at.Close()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode != unix.S_IFDIR|0o700 || int(st.Uid) != os.Geteuid() {
		return false
	}
	if n, err := unix.Flistxattr(fd, nil); n > 0 || err != nil && !errors.Is(err, unix.ENOTSUP) {
		return false // an access control list, for example
	}
	names, err := at.Readdirnames(len(entries) + 1)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return err == nil && len(names) == len(entries) && (len(names) == 0 || names[0] == entries[0])
}

// isAt reports whether name in parent is the open directory dir.
func isAt(parent *os.File, name string, dir *os.File) bool {
	var ours, there unix.Stat_t
	return unix.Fstat(int(dir.Fd()), &ours) == nil &&
		unix.Fstatat(int(parent.Fd()), name, &there, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		ours.Ino == there.Ino && ours.Dev == there.Dev
}
