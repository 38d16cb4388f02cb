package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

var errNoShell = errors.New("no shell: neither bash nor sh is in the step's PATH")

// shell returns the path of the shell for scripts: bash, or sh where there is none. It is looked up
// in path, the step's PATH; relative entries of that are below dir.
func shell(path, dir string) (string, error) {
	for _, name := range []string{"bash", "sh"} {
		for _, in := range filepath.SplitList(path) {
			file := filepath.Join(in, name)
			if !filepath.IsAbs(file) {
				file = filepath.Join(dir, file)
			}
			if fi, err := os.Stat(file); err == nil && fi.Mode().IsRegular() && fi.Mode().Perm()&0o111 != 0 {
				return file, nil
			}
		}
	}
	return "", errNoShell
}

// writeScript writes text to a new file at path that only its owner can read.
func writeScript(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("create script: %w", err)
	}
	_, err = f.WriteString(text)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		_ = os.Remove(path)
		return fmt.Errorf("write script: %w", err)
	}
	return nil
}
