// Package boundedfile reads regular files: files that an operator has named, up to a size ([Read], [ReadBy]). It owns
// nothing.
package boundedfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// ErrTooLarge is wrapped by the error for a file that is larger than its limit.
var ErrTooLarge = errors.New("is too large")

// Read reads a regular file of at most limit bytes, or os.DevNull. It refuses directories, and pipes and devices,
// because they could block. Its errors contain the name.
func Read(name string, limit int64) ([]byte, error) {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, fmt.Errorf("%s is a directory: name a file", name)
	case name == os.DevNull:
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadAll(f, name, limit)
}

// Opener is os.OpenFile, or the method of an [os.Root].
type Opener func(name string, flag int, perm fs.FileMode) (*os.File, error)

// Open opens a regular file for reading. A pipe does not block it.
func Open(open Opener, name string) (*os.File, error) {
	file, err := open(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", name)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// ReadBy reads a regular file of at most limit bytes. Its errors contain the name.
func ReadBy(open Opener, name string, limit int64) ([]byte, error) {
	file, err := Open(open, name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return ReadAll(file, name, limit)
}

// ReadAll reads an open file to its end: at most limit bytes. The error for a larger file has the name.
func ReadAll(f *os.File, name string, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s %w: it is larger than %d bytes", name, ErrTooLarge, limit)
	}
	return data, nil
}
