// Package npmtest has real clients of the services for actions: it installs packages of npm, and has an action that
// uses them.
package npmtest

import (
	"embed"
	"fmt"
	"io/fs"
	"os/exec"
)

// Install installs packages in a directory, by the names that programs use for them. An error says which part is
// missing.
func Install(dir string, packages map[string]string) error {
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
