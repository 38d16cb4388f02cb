package login

import (
	"errors"
	"fmt"
	"io"
	"os"
)

var errTooLarge = errors.New("is larger than such a file may be")

// readBounded reads a file that somebody named, if it is one and no larger than limit.
func readBounded(name string, limit int64) ([]byte, error) {
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
		return nil, fmt.Errorf("%s %w, %d bytes", name, errTooLarge, limit)
	}
	return data, nil
}
