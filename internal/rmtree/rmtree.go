// Package rmtree removes directories whatever their modes.
package rmtree

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Remove removes path and all below it, if it is there. It does not follow symbolic links, and opens directories that
// were closed to us or made read-only, as caches of modules are.
func Remove(path string) error {
	err := os.RemoveAll(path)
	if err == nil || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	// A directory is visited before it is read: what is opened here can be walked.
	_ = filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && err == nil {
			_ = os.Chmod(name, 0o700) // if it fails so does RemoveAll, with the better error
		}
		return nil
	})
	return os.RemoveAll(path)
}
