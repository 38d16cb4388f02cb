// Package npmtest has real clients of the services for actions: it installs packages of npm, and has actions that use
// them.
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

//go:embed actions
var actions embed.FS

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

// standIns are the tags of the actions that a Mirror has.
var standIns = map[string]string{"upload-artifact": "v7", "download-artifact": "v8", "cache": "v5"}

// Mirror makes a mirror of repositories of actions in a new directory, as --actions-base takes it: actions/cache,
// actions/download-artifact and actions/upload-artifact. They are stand-ins, with the inputs and outputs that most
// workflows use, over the real clients in the directory of packages.
func Mirror(dir, packages string) error {
	for name, tag := range standIns {
		to, from := filepath.Join(dir, "actions", name), "actions/"+name
		files, err := fs.Sub(actions, from)
		if err == nil {
			err = os.CopyFS(to, files)
		}
		if err != nil {
			return err
		}
		lib, err := actions.ReadFile("actions/lib.mjs")
		if err == nil {
			err = os.WriteFile(filepath.Join(to, "lib.mjs"), lib, 0o600)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, "packages.txt"), []byte(packages), 0o600)
		}
		if err != nil {
			return err
		}
		for _, args := range [][]string{
			{"init", "-q"}, {"add", "."}, {"-c", "user.name=a", "-c", "user.email=a@x.test", "commit", "-qm", "a"}, {"tag", tag},
		} {
			if out, err := exec.Command("git", append([]string{"-C", to}, args...)...).CombinedOutput(); err != nil {
				return fmt.Errorf("git %s: %w: %s", args, err, out)
			}
		}
	}
	return nil
}
