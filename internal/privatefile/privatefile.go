// Package privatefile reads and creates files that only their owner can read: keys and tokens.
package privatefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/internal/contents"
)

// Read returns the text of a regular file of at most limit bytes. It refuses a file that its group or others can use.
// Errors contain the name.
func Read(name string, limit int64) ([]byte, error) {
	f, err := boundedfile.Open(os.OpenFile, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s can be read by others (mode %04o): use mode 0600", name, info.Mode().Perm())
	}
	return boundedfile.ReadAll(f, name, limit)
}

// Create makes a file with mode 0600. The file appears with all its bytes, or not at all, and survives a crash of the
// machine. If a file exists already, the error is fs.ErrExist.
func Create(name string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".new-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // the file stays under its other name
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), name); err != nil {
		return err
	}
	return contents.SyncDir(filepath.Dir(name))
}

// Preview returns the result of Open, but makes no file. It returns an error if the directory of a missing file cannot
// take one. made is a directory that is made before Open is called, or empty.
func Preview(name, made string, limit int64, fresh func() ([]byte, error)) ([]byte, error) {
	text, err := Read(name, limit)
	if !errors.Is(err, fs.ErrNotExist) {
		return text, err
	}
	dir := filepath.Dir(name)
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil &&
		(!errors.Is(err, fs.ErrNotExist) || dir != filepath.Clean(made)) {
		return nil, fmt.Errorf("make %s: %w", name, err)
	}
	return fresh()
}

// Open reads a file like Read. If the file is missing, Open first makes it with the text of fresh.
func Open(name string, limit int64, fresh func() ([]byte, error)) ([]byte, error) {
	text, err := Read(name, limit)
	if !errors.Is(err, fs.ErrNotExist) {
		return text, err
	}
	if text, err = fresh(); err == nil {
		err = Create(name, text)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) { // another process may have made it
		return nil, err
	}
	return Read(name, limit)
}
