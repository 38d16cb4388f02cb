// Package filelock locks files and directories with flock(2), between independent processes. [Try] and [Wait] lock an
// open file, [Claim] opens and locks a path; [Release] ends both.
//
// A lock belongs to one opening of a file and to the processes that inherit it. The kernel releases it when the last of
// them has closed the file or has ended. systemd-tmpfiles does not touch a locked directory.
package filelock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/pause"
)

// ErrTaken says that another process holds the lock, or has removed or replaced the file.
var ErrTaken = errors.New("in use")

// Try takes the exclusive lock of f without waiting. If another process holds a lock, the error is ErrTaken.
func Try(f *os.File) error { return try(f, unix.LOCK_EX) }

// TryShared takes the shared lock of f without waiting. The error is ErrTaken if another process holds the exclusive
// lock, or gets it while f's own exclusive lock is being exchanged for the shared one.
func TryShared(f *os.File) error { return try(f, unix.LOCK_SH) }

func try(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EWOULDBLOCK):
			return ErrTaken
		}
		return fmt.Errorf("lock %s (it must be on a file system with flock): %w", f.Name(), err)
	}
}

// Unlock releases the lock of f at once. Closing f is not enough while a child that is being forked still has a copy of
// the descriptor.
func Unlock(f *os.File) { _ = unix.Flock(int(f.Fd()), unix.LOCK_UN) }

// Release unlocks f and closes it.
func Release(f *os.File) {
	Unlock(f)
	f.Close()
}

// Claim opens the file or directory at path, but not a symbolic link, and locks it. The error is ErrTaken if another
// process holds the lock, or if path does not lead to the locked file any more. The caller releases the file.
func Claim(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrTaken
	}
	if err != nil {
		return nil, err
	}
	if err := Try(f); err != nil {
		f.Close()
		return nil, err
	}
	// The last holder of the lock may have renamed or removed the file.
	if !StillAt(f, path) {
		f.Close()
		return nil, ErrTaken
	}
	return f, nil
}

// StillAt reports whether path leads to the open file f. It does not follow a symbolic link at path.
func StillAt(f *os.File, path string) bool {
	opened, err := f.Stat()
	if err != nil {
		return false
	}
	now, err := os.Lstat(path)
	return err == nil && os.SameFile(opened, now)
}

// Wait waits for the exclusive lock of f and takes it. If ctx ends first, the error is its cause.
func Wait(ctx context.Context, f *os.File) error {
	return pause.Until(ctx, func() (bool, error) {
		err := Try(f)
		if errors.Is(err, ErrTaken) {
			return false, nil
		}
		return true, err
	})
}
