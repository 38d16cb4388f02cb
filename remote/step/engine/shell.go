package engine

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/stepmux/stepmux/remote/proc"
)

var errNoShell = errors.New("no shell")

// shell returns the path of the shell for scripts: wanted or, if wanted is empty, bash, or else sh. It searches the
// PATH in env, the step's environment. Relative entries of PATH are below dir.
func shell(wanted, dir string, env []string) (string, error) {
	names := []string{"bash", "sh"}
	if wanted != "" {
		names = []string{wanted}
	}
	for _, name := range names {
		if file, err := proc.Find(name, dir, env); err == nil {
			return filepath.Clean(file), nil
		}
	}
	if wanted != "" {
		return "", fmt.Errorf("%w: %s is not in the step's PATH", errNoShell, wanted)
	}
	return "", fmt.Errorf("%w: neither bash nor sh is in the step's PATH", errNoShell)
}
