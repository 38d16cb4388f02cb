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
)

// ReadFile reads the file name, which must be a regular one; or standard input, if name is "-". It reads no more
// than a byte beyond what steps can have.
func ReadFile(name string, stdin io.Reader) ([]byte, error) {
	if name == "-" {
		return readText(stdin)
	}
	file, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO must not hold us
	if err != nil {
		return nil, err
	}
	return readRegular(file)
}

// readIn is ReadFile in a directory, which it does not leave.
func readIn(root *os.Root, name string) ([]byte, error) {
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	return readRegular(file)
}

func readRegular(file *os.File) ([]byte, error) {
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

// CheckOutputFile reports whether a file can be written at path, as far as that can be told before.
func CheckOutputFile(path string) error {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return fmt.Errorf("write %s: it is a directory", path)
	case err == nil && !info.Mode().IsRegular():
		return fmt.Errorf("write %s: there is something that is not a regular file", path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("write %w", err)
	}
	if err := unix.Access(filepath.Dir(path), unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("write %s: its directory: %w", path, err)
	}
	return nil
}

// IsSameFile reports whether both paths lead to one file, be it there or not. No path is the same as none.
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

// WriteFile writes a file that only our user can read, and which is there as a whole or not at all.
func WriteFile(path string, data []byte) (err error) {
	if err := CheckOutputFile(path); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".tmp") // of mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp.Name())
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	_, err = tmp.Write(data)
	if err == nil {
		err = tmp.Sync()
	}
	if closeErr := tmp.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
