// Package filelock locks files and directories between independent processes. [Try] and [Wait] lock an open file with
// flock(2), [Claim] opens and locks a path; [Release] ends both.
//
// Any process that can open a file can lock it with flock(2). [TryRead] and [TryWrite] are for files that hostile
// processes can read, but not write: the kernel gives a write lock only for a descriptor that can write, so the others
// cannot keep a reader waiting.
//
// A lock belongs to one opening of a file and to the processes that inherit it. The kernel releases it when the last of
// them has closed the file or has ended. systemd-tmpfiles does not touch a locked directory.
package filelock

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/pause"
)

// ErrTaken says that another process holds the lock, or has removed or replaced the file.
var ErrTaken = errors.New("in use")

// Try takes the exclusive lock of f without waiting. If another process holds a lock, the error is ErrTaken.
func Try(f *os.File) error {
	return try(f, func(fd uintptr) error { return unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB) })
}

// TryRead takes a read lock of f, a file open for reading, without waiting. If another process holds the write lock,
// the error is ErrTaken. Read and write locks are those of fcntl(2) and exclude no lock of flock(2).
func TryRead(f *os.File) error {
	return try(f, func(fd uintptr) error { return record(fd, unix.F_RDLCK) })
}

// TryWrite takes the write lock of f, a file open for writing, without waiting. If another process holds a read lock or
// the write lock, the error is ErrTaken.
func TryWrite(f *os.File) error {
	return try(f, func(fd uintptr) error { return record(fd, unix.F_WRLCK) })
}

// IsRead reports whether another process holds a read lock of f.
func IsRead(f *os.File) bool {
	other := unix.Flock_t{Type: unix.F_WRLCK}
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &other) == nil && other.Type == unix.F_RDLCK
}

// record changes the lock of a whole file, which belongs to its opening.
func record(fd uintptr, kind int16) error {
	return unix.FcntlFlock(fd, unix.F_OFD_SETLK, &unix.Flock_t{Type: kind})
}

func try(f *os.File, lock func(fd uintptr) error) error {
	for {
		err := lock(f.Fd())
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EWOULDBLOCK):
			return ErrTaken
		}
		return oserr.With("lock "+f.Name()+" (its file system must have locks)", err)
	}
}

// Unlock releases the locks of f at once. Closing f is not enough while a child that is being forked still has a copy
// of the descriptor.
func Unlock(f *os.File) {
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
	_ = record(f.Fd(), unix.F_UNLCK)
}

// Release unlocks f and closes it.
func Release(f *os.File) {
	Unlock(f)
	f.Close()
}

// Claim opens the file or directory at path, but not a symbolic link, and locks it. The error is ErrTaken if another
// process holds the lock, or if path does not lead to the locked file any more. The caller releases the file.
func Claim(path string) (*os.File, error) { return claim(path, os.O_RDONLY, Try) }

// ClaimWrite is Claim with the lock of TryWrite.
func ClaimWrite(path string) (*os.File, error) { return claim(path, os.O_WRONLY, TryWrite) }

func claim(path string, flag int, try func(*os.File) error) (*os.File, error) {
	f, err := os.OpenFile(path, flag|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrTaken
	}
	if err != nil {
		return nil, err
	}
	if err := try(f); err != nil {
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
