package socketdir

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// FoundError says that a path has something other than a directory of our user. It is never removed.
type FoundError struct {
	path  string
	kind  string // "a symbolic link"
	owner uint32
	want  int // the user who should own it: ours, or that of a build of root's
}

// Error implements error.
func (e *FoundError) Error() string {
	owner, want := "which is ours", "a directory of our own"
	if e.foreign() {
		owner = fmt.Sprintf("which belongs to user %d, not to us (user %d)", e.owner, os.Geteuid())
	}
	if e.want != os.Geteuid() {
		want = fmt.Sprintf("a directory that belongs to user %d, as the one above it", e.want)
	}
	return fmt.Sprintf("%s is %s, %s: want %s; remove it, or use another temporary directory", e.path, e.kind, owner, want)
}

func (e *FoundError) foreign() bool { return e.owner != uint32(os.Geteuid()) }

// ourDir returns a *FoundError unless fi, from an Lstat of path, is a directory of our user.
func ourDir(path string, fi fs.FileInfo) error { return dirOf(os.Geteuid(), path, fi) }

// dirOf is ourDir for another user.
func dirOf(owner int, path string, fi fs.FileInfo) error {
	if fi.IsDir() && ownerOf(fi) == owner {
		return nil
	}
	return &FoundError{path: path, kind: kind(fi.Mode()), owner: uint32(ownerOf(fi)), want: owner}
}

func ownerOf(fi fs.FileInfo) int { return int(fi.Sys().(*syscall.Stat_t).Uid) }

func kind(mode fs.FileMode) string {
	return cmp.Or(kinds[mode.Type()], "a device")
}

var kinds = map[fs.FileMode]string{
	0:                "a regular file",
	fs.ModeDir:       "a directory",
	fs.ModeSymlink:   "a symbolic link",
	fs.ModeSocket:    "a socket",
	fs.ModeNamedPipe: "a named pipe",
}
