package firstuse

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/filelock"
)

const (
	fileMode = 0o600
	// openFlags refuse a symbolic link in the place of the file and do not wait for a pipe.
	openFlags = unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
)

// checkFile returns an error if the file cannot be a store or if others could have written it.
func checkFile(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case info.IsDir():
		return errors.New("the path is a directory; name a file")
	case !info.Mode().IsRegular():
		return errors.New("the store of keys is not a regular file")
	case ok && int(stat.Uid) != os.Getuid() && stat.Uid != 0:
		return fmt.Errorf("the file belongs to another user (%d), so its keys prove nothing", stat.Uid)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("others may write to it (mode %04o), so its keys prove nothing: check it, then chmod 600",
			info.Mode().Perm())
	}
	return nil
}

// lock keeps other writers out until unlock is called. It locks a file of its own, because writers replace the store's
// file. The kernel releases the lock when the process ends.
func (s *Store) lock(ctx context.Context) (unlock func(), err error) {
	f, err := os.OpenFile(s.path+".lock", os.O_CREATE|os.O_RDWR|openFlags, fileMode)
	if err != nil {
		return nil, err
	}
	if err := filelock.Wait(ctx, f); err != nil {
		f.Close()
		if ctx.Err() != nil {
			err = fmt.Errorf("%s is held by another process: %w", f.Name(), err)
		}
		return nil, err
	}
	return func() { filelock.Release(f) }, nil
}
