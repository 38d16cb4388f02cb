// Package npmtest has real clients of the services for actions: it installs packages of npm, and has an action that
// uses them.
package npmtest

import (
	"crypto/sha256"
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/stepmux/stepmux/internal/testing/runnertest"
)

// Clients are clients, by the names that programs use for them: of each protocol the first and the last major version.
var Clients = map[string]string{
	"artifact-1": "@actions/artifact@1.1.3",
	"artifact-2": "@actions/artifact@2.3.2", "artifact-6": "@actions/artifact@6.2.1",
	"cache-3": "@actions/cache@3.3.0", "cache-6": "@actions/cache@6.3.0",
}

// Install returns a directory with packages, by the names that programs use for them: temp or, for all test binaries
// that get [runnertest.DirVar], one there. An error says which part is missing.
func Install(temp string, packages map[string]string) (dir string, err error) {
	shared := os.Getenv(runnertest.DirVar)
	if shared == "" {
		return temp, install(temp, packages)
	}
	sum := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		fmt.Fprintln(sum, name, packages[name])
	}
	dir = filepath.Join(shared, fmt.Sprintf("npm-%x", sum.Sum(nil)[:4]))
	return dir, runnertest.Once(dir, func() error { return install(dir, packages) })
}

func install(dir string, packages map[string]string) error {
	args := []string{"install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", dir}
	for name, of := range packages {
		args = append(args, name+"@npm:"+of)
	}
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("part missing: %s", program)
		}
	}
	if out, err := exec.Command("npm", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("part missing: npm install: %w: %s", err, out)
	}
	return nil
}

//go:embed act
var act embed.FS

// Files returns the files of the action ./act, by their paths in a project. It calls the services for artifacts and
// caches, as its input says.
func Files() (map[string]string, error) {
	files := map[string]string{}
	err := fs.WalkDir(act, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := act.ReadFile(path)
		files[path] = string(text)
		return err
	})
	return files, err
}
