package proc

import (
	"context"
	"math/rand/v2"
	"os"
	"path"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/filelock"
	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/rmtree"
)

const (
	// orphanTimeout bounds how long the init tries to lock an orphan directory, and how long it retries the removal of
	// files that resist. The dead server's lock may end a moment after its channel, and other inits may still be
	// killing processes that write there.
	orphanTimeout = 2 * time.Second
	// removalTimeout bounds the whole removal: a large tree may take minutes, but an init must end.
	removalTimeout = 10 * time.Minute
)

// orphanDir is an open orphan directory. An open directory stays the same one even if another is put at its path. If
// path is empty, there is no such file.
type orphanDir struct {
	fd   int
	path string
}

// openOrphan opens the orphan directory path, which must be ours.
func openOrphan(path string) (dir orphanDir, failed *failure) {
	if path == "" {
		return dir, nil
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return dir, orphanFailure(path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return dir, orphanFailure(path, err)
	}
	if int(st.Uid) != os.Geteuid() {
		return dir, orphanFailure(path, unix.EPERM)
	}
	return orphanDir{fd, path}, nil
}

func orphanFailure(path string, err error) *failure {
	return fail(stageOrphan, oserr.With("open orphan directory "+strconv.Quote(path), err))
}

// removeOrphan removes the directory, even if a job has moved it, unless another process has locked it, and closes it.
// If a part of it resists, that part stays under a name that says it is being removed. When ctx ends, it stops at the
// next entry.
func removeOrphan(ctx context.Context, orphan orphanDir) {
	if orphan.path == "" {
		return
	}
	dir := os.NewFile(uintptr(orphan.fd), orphan.path)
	defer dir.Close()
	trying, cancel := context.WithTimeout(ctx, orphanTimeout)
	defer cancel()
	if pause.Until(trying, func() (bool, error) { return filelock.Try(dir) == nil, nil }) != nil {
		return
	}
	if filelock.StillAt(dir, dir.Name()) { // otherwise a job has moved it
		scratch := "~" + strconv.FormatUint(rand.Uint64(), 36)
		_ = os.Rename(dir.Name(), path.Join(path.Dir(dir.Name()), scratch)) // if it fails, the name stays
	}
	// An attempt may take longer than orphanTimeout, but no attempt begins after it.
	_ = pause.Until(trying, func() (bool, error) { return rmtree.RemoveOpen(ctx, dir) == nil, nil })
}
