// Package boundedfile reads files that an operator named: regular files of a bounded size.
package boundedfile

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// ErrTooLarge is wrapped by the error for a file that is larger than its limit.
var ErrTooLarge = errors.New("is too large")

// Read reads a regular file of at most limit bytes, or os.DevNull. It refuses directories, and pipes and devices, which
// could block. Its errors have the name.
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
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s %w: it is larger than %d bytes", name, ErrTooLarge, limit)
	}
	return data, nil
}
