package proc

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// orphanTimeout is how long the shim tries to remove an orphan directory: its lock may be given up a
// moment after the channel, and other shims may still be killing what fills it.
const orphanTimeout = 2 * time.Second

// orphanDir is the directory a dead server leaves, nil if there is none. Being open it stays the one it
// was, whatever comes to its path.
type orphanDir struct {
	path string
	dir  *os.File
}

// openOrphan opens the directory path, which must be ours.
func openOrphan(path string) (*orphanDir, *failure) {
	if path == "" {
		return nil, nil
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fail(stageOrphan, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fail(stageOrphan, err)
	}
	if int(st.Uid) != os.Geteuid() {
		return nil, fail(stageOrphan, unix.EPERM)
	}
	return &orphanDir{path, os.NewFile(uintptr(fd), path)}, nil
}

// remove removes the directory, if nobody has it locked and it is still at its path. The shims of one
// server all try; the first to lock it does it. What it cannot remove is left, under a name that says it
// is being removed.
func (o *orphanDir) remove() {
	if o == nil {
		return
	}
	end := time.Now().Add(orphanTimeout)
	if !retry(end, func() bool { return unix.Flock(int(o.dir.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil }) {
		return
	}
	parent, err := os.OpenRoot(path.Dir(o.path))
	if err != nil {
		return
	}
	name := path.Base(o.path)
	now, err := parent.Lstat(name)
	ours, statErr := o.dir.Stat()
	if err != nil || statErr != nil || !os.SameFile(now, ours) {
		return
	}
	scratch := "~" + strconv.FormatUint(rand.Uint64(), 36)
	if parent.Rename(name, scratch) != nil {
		return
	}
	retry(end, func() bool { return removeAll(parent, scratch) == nil })
}

// removeAll is Root.RemoveAll that also removes directories which were made unwritable.
func removeAll(parent *os.Root, name string) error {
	err := parent.RemoveAll(name)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	_ = fs.WalkDir(parent.FS(), name, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_ = parent.Chmod(path, 0o700) // before it is read
		}
		return nil
	})
	return parent.RemoveAll(name)
}

// retry calls do until it returns true or the time end has passed, and returns its last result.
func retry(end time.Time, do func() bool) bool {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if do() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
		<-time.NewTimer(pause).C
	}
}
