package remote

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// foundError says that something stands where a directory of ours should be. It is never removed.
type foundError struct {
	path  string
	what  string // "a symbolic link"
	owner uint32
}

func (e *foundError) Error() string {
	who := "which is ours"
	if e.foreign() {
		who = fmt.Sprintf("which belongs to user %d, not to us (user %d)", e.owner, os.Geteuid())
	}
	return fmt.Sprintf("%s is %s, %s: want a directory of our own; remove it, or use another temporary directory",
		e.path, e.what, who)
}

func (e *foundError) foreign() bool { return e.owner != uint32(os.Geteuid()) }

// ourDir returns nil if fi, from an Lstat of path, is a directory of our user, else a *foundError.
func ourDir(path string, fi fs.FileInfo) error {
	found := &foundError{path: path, what: kind(fi.Mode()), owner: fi.Sys().(*syscall.Stat_t).Uid}
	if fi.IsDir() && !found.foreign() {
		return nil
	}
	return found
}

func kind(mode fs.FileMode) string {
	switch mode.Type() {
	case 0:
		return "a regular file"
	case fs.ModeDir:
		return "a directory"
	case fs.ModeSymlink:
		return "a symbolic link"
	case fs.ModeSocket:
		return "a socket"
	case fs.ModeNamedPipe:
		return "a named pipe"
	default:
		return "a device"
	}
}

// noSpace reports whether err says that the file system of the socket directory is full.
func noSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

// hint adds to err what the operator of the VM can do about it, where that is known. The directory is
// where files were to be made.
func hint(err error, dir string) error {
	switch {
	case err == nil:
		return nil
	case noSpace(err):
		return fmt.Errorf("%w (free space or inodes on the file system of %s)", err, dir)
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w (make %s writable, or use another temporary directory)", err, dir)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w (user %d must be able to write in %s)", err, os.Geteuid(), dir)
	}
	return err
}
