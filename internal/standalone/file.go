package standalone

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/remote/step/lang"
	"github.com/stepmux/stepmux/remote/step/trace/recording"
)

// ReadFile reads the regular file name or, if name is "-", standard input. It reads at most one byte more than a text
// of steps may have, so that the caller notices a text that is too long.
func ReadFile(name string, stdin io.Reader) ([]byte, error) {
	if name == "-" {
		return readText(stdin)
	}
	return readRegular(os.OpenFile, name)
}

// readRegular reads a regular file with open, which may be the method of an open directory.
func readRegular(open func(name string, flag int, perm fs.FileMode) (*os.File, error), name string) ([]byte, error) {
	file, err := open(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a FIFO must not block
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, fmt.Errorf("read %s: %w; name a file in it", file.Name(), syscall.EISDIR)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("read %s: it is not a regular file; to read a pipe use -", file.Name())
	}
	return readText(file)
}

func readText(from io.Reader) ([]byte, error) {
	return io.ReadAll(io.LimitReader(from, lang.MaxText+1))
}

// CheckOutputFile returns an error if it is certain that no file can be written at path.
func CheckOutputFile(path string) error {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return fmt.Errorf("write %s: it is a directory", path)
	case err == nil && !info.Mode().IsRegular():
		return fmt.Errorf("write %s: it exists, and is not a regular file", path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("write %s: %w", path, errors.Unwrap(err))
	}
	if err := unix.Access(filepath.Dir(path), unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("write %s: its directory: %w", path, err)
	}
	return nil
}

// IsSameFile reports whether both paths lead to one file. The file need not exist. An empty path is not a file.
func IsSameFile(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	one, errA := os.Stat(a)
	other, errB := os.Stat(b)
	if errA == nil && errB == nil {
		return os.SameFile(one, other)
	}
	pathA, errA := filepath.Abs(a)
	pathB, errB := filepath.Abs(b)
	return errA == nil && errB == nil && pathA == pathB
}

// WriteFile writes a file that only this user can read. It replaces an older file completely or, after an error, not at
// all.
func WriteFile(path string, data []byte) error {
	if err := CheckOutputFile(path); err != nil {
		return err
	}
	file, err := recording.Create(path, 0)
	if err != nil {
		return err
	}
	defer file.Discard()
	if _, err := file.Write(data); err != nil {
		return err
	}
	return file.Commit()
}
