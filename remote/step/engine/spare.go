package engine

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/rmtree"
)

// Most steps leave their command files empty. On a disk, to make and remove these files costs more than a short step.
// So an earlier step's directory gets a new name and is used again. No step can notice: a file is replaced by a new one
// if it has content, another mode or another name, or if a process of the earlier step has it open.

// makeFiles makes the directory name with empty files, for a part.
func (r *Runner) makeFiles(name string, files []string) error {
	d, spare := r.scripts, r.spare
	r.spare = ""
	isOld := spare != "" && d.root.Rename(spare, name) == nil
	if !isOld {
		if spare != "" {
			d.remove(spare)
		}
		if err := d.mkdir(name); err != nil {
			return err
		}
	}
	root, dir, err := d.openDir(name) // looked up once, not for each file
	if err != nil {
		return d.explain(err, name)
	}
	defer root.Close()
	defer dir.Close()
	for _, file := range files {
		if isOld {
			if isUnused(dir, file) {
				continue
			}
			if err := rmtree.RemoveEntry(root, file); err != nil {
				return d.explain(err, filepath.Join(name, file))
			}
		}
		f, err := createNew(root, file)
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			return d.explain(err, filepath.Join(name, file))
		}
	}
	return nil
}

// openDir opens a directory. The caller closes both.
func (d scriptDir) openDir(name string) (*os.Root, *os.File, error) {
	root, err := d.root.OpenRoot(name)
	if err != nil {
		return nil, nil, err
	}
	dir, err := root.Open(".")
	if err != nil {
		_ = root.Close() // nothing was written to it
		return nil, nil, err
	}
	return root, dir, nil
}

// retire removes all entries of the directory name, except for those of files that are empty, and keeps the directory
// for a later part. If that fails, or it keeps one already, it removes the directory.
func (r *Runner) retire(name string, files []string) {
	d := r.scripts
	if r.spare != "" || !d.clear(name, files) {
		d.remove(name)
		return
	}
	r.spare = name
}

// maxLeft bounds the entries of a directory that clear looks at.
const maxLeft = 64

// clear removes all entries of the directory name, except for those of files that are unchanged.
func (d scriptDir) clear(name string, files []string) bool {
	if info, err := d.root.Lstat(name); err != nil || info.Mode() != fs.ModeDir|0o700 {
		return false
	}
	root, dir, err := d.openDir(name)
	if err != nil {
		return false
	}
	defer root.Close()
	defer dir.Close()
	names, err := dir.Readdirnames(maxLeft)
	if err != nil && !errors.Is(err, io.EOF) || len(names) == maxLeft {
		return false
	}
	for _, entry := range names {
		var st unix.Stat_t
		if slices.Contains(files, entry) &&
			unix.Fstatat(int(dir.Fd()), entry, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && isEmpty(&st) {
			continue
		}
		if rmtree.RemoveEntry(root, entry) != nil {
			return false
		}
	}
	return true
}

// isEmpty reports whether a file is as createNew makes it.
func isEmpty(st *unix.Stat_t) bool {
	return st.Mode == unix.S_IFREG|0o600 && st.Size == 0 && st.Nlink == 1 && int(st.Uid) == os.Geteuid()
}

// isUnused reports whether a file is as createNew makes it and no process has it open: only then the system grants a
// lease for writing. No process can open it by its path, because its directory has a new name.
func isUnused(dir *os.File, name string) bool {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }() // ends the lease; nothing was written
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || !isEmpty(&st) {
		return false
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK)
	return err == nil
}
