package proc

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/filelock"
	"github.com/stepmux/stepmux/internal/rmtree"
)

const (
	// orphanTimeout is how long the init tries to lock an orphan directory, and how long it goes on trying where some of
	// it resists. The dead server's lock may end a moment after its channel, and other inits may still be killing the
	// processes that write there.
	orphanTimeout = 2 * time.Second
	// removalTimeout bounds the whole removal. A large tree takes minutes, and an init must end.
	removalTimeout = 10 * time.Minute
)

// openOrphan opens the directory path, which a dead server would leave and which must be ours. As it is open it stays
// the same one whatever comes to its path. It returns nil if the command has no orphan directory.
func openOrphan(path string) (*os.File, *failure) {
	if path == "" {
		return nil, nil
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, orphanFailure(path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, orphanFailure(path, err)
	}
	if int(st.Uid) != os.Geteuid() {
		return nil, orphanFailure(path, unix.EPERM)
	}
	return os.NewFile(uintptr(fd), path), nil
}

func orphanFailure(path string, err error) *failure {
	return fail(stageOrphan, fmt.Errorf("open orphan directory %q: %w", path, err))
}

// removeOrphan removes the directory, wherever a job may have moved it, if no process has it locked. It does nothing
// for nil. If some of it resists, the rest of it stays
// under a name that says it is being removed. When ctx ends it stops at the next entry.
func removeOrphan(ctx context.Context, dir *os.File) {
	if dir == nil {
		return
	}
	trying, cancel := context.WithTimeout(ctx, orphanTimeout)
	defer cancel()
	if filelock.Poll(trying, func() (bool, error) { return filelock.Try(dir) == nil, nil }) != nil {
		return
	}
	parent, err := os.OpenRoot(path.Dir(dir.Name()))
	if err != nil {
		return
	}
	name := path.Base(dir.Name())
	now, err := parent.Lstat(name)
	ours, statErr := dir.Stat()
	if err != nil || statErr != nil || !os.SameFile(now, ours) { // a job has moved it
		_ = rmtree.RemoveOpen(ctx, dir)
		return
	}
	scratch := "~" + strconv.FormatUint(rand.Uint64(), 36)
	if parent.Rename(name, scratch) != nil {
		return
	}
	// An attempt that has begun may take longer than orphanTimeout; no other one begins after that.
	remove := func() (bool, error) { return rmtree.RemoveIn(ctx, parent, scratch) == nil, nil }
	_ = filelock.Poll(trying, remove)
}
