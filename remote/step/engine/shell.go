package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

var errNoShell = errors.New("no shell")

// shell returns the path of the shell for scripts: wanted or, if that is empty, bash, or else sh. It looks in path,
// the step's PATH; relative entries of that are below dir.
func shell(wanted, path, dir string) (string, error) {
	names := []string{"bash", "sh"}
	if wanted != "" {
		names = []string{wanted}
	}
	for _, name := range names {
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
	if wanted != "" {
		return "", fmt.Errorf("%w: %s is not in the step's PATH", errNoShell, wanted)
	}
	return "", fmt.Errorf("%w: neither bash nor sh is in the step's PATH", errNoShell)
}

// lookup returns the value of name in env.
func lookup(env []string, name string) string {
	for _, kv := range env {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	return ""
}
