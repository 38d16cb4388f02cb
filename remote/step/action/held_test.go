package action

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// neighbour makes a directory of somebody else. It has command files, also below the names that steps' directories
// have. The function returns the names and the texts in it.
func neighbour(t *testing.T) (dir string, content func() map[string]string) {
	t.Helper()
	dir = t.TempDir()
	for _, in := range []string{"", "step-1", "step-2"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, in), 0o700))
		for _, kind := range fileKinds {
			require.NoError(t, os.WriteFile(filepath.Join(dir, in, kind), []byte("stolen=1\n"), 0o600))
		}
	}
	return dir, func() map[string]string {
		all := map[string]string{}
		require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				all[path] = "a directory"
				return err
			}
			text, err := os.ReadFile(path)
			all[path] = string(text)
			return err
		}))
		return all
	}
}

// A step put links in the place of its directories and files. The runner is outside the isolation that holds the step,
// and read, wrote and removed files where the links led.
func TestRunnerFollowsNoLinkOutOfTheDirectoryOfTheJob(t *testing.T) {
	for name, script := range map[string]string{
		"directory of the job":     `mv "$job" "$job.moved"; ln -s "$TO" "$job"`,
		"directory of the step":    `mv "$own" "$own.moved"; ln -s "$TO" "$own"`,
		"directory of a next step": `for n in 2 3 4; do [ -e "$job/step-$n" ] || ln -s "$TO" "$job/step-$n"; done`,
		"command files":            `for f in "$own"/[a-z]*; do ln -sf "$TO/$(basename "$f")" "$f"; done`,
	} {
		t.Run(name, func(t *testing.T) {
			to, content := neighbour(t)
			before := content()
			tr := newTrial(t)
			tr.workflow("- id: a\n  env: {TO: '" + to + "'}\n  run: |\n    own=$(dirname \"$GITHUB_OUTPUT\")\n" +
				"    job=$(dirname \"$own\")\n    " + script + "\n" + strings.Repeat("- if: always()\n  run: echo next\n", 2))
			res := tr.run()
			require.Equal(t, engine.Failure, res.Status)
			require.Equal(t, before, content())
			for _, step := range res.Steps[0].Steps {
				require.Empty(t, step.Outputs)
				require.Empty(t, step.Summary)
			}
		})
	}
}

func TestRunnerMakesItsDirectoriesInTheDirectoryOfTheJob(t *testing.T) {
	for name, script := range map[string]string{
		"directory of the job": `mv "$job" "$job.moved"; ln -s "$TO" "$job"`,
		"directory of actions": `ln -s "$TO" "$job/actions"`,
	} {
		t.Run(name, func(t *testing.T) {
			to, content := neighbour(t)
			before := content()
			tr := newTrial(t)
			tr.file("a/action.yml", "runs: {using: composite, steps: [{run: 'true', shell: sh}]}\n")
			tr.steps("- {name: a, env: {TO: '" + to + "'}, script: 'job=$(dirname \"$(dirname \"${{ output_file }}\")\"); " +
				script + "'}\n- {name: b, action: ./a}\n")
			require.Equal(t, engine.Failure, tr.run().Status)
			require.Equal(t, before, content())
		})
	}
}

// The runner itself started docker to remove a container: a program of the step's choice, outside the isolation.
func TestContainerIsRemovedFromWithinTheIsolation(t *testing.T) {
	id := strings.Repeat("0f", 32)
	for name, test := range map[string]struct {
		write   string
		removed bool
	}{
		"an id":     {`printf %s "$ID" > "$file"`, true},
		"an option": {`printf %s --help > "$file"`, false},
		"a link":    {`ln -s "$TO/id" "$file"`, false},
	} {
		t.Run(name, func(t *testing.T) {
			to := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(to, "id"), []byte(id), 0o600))
			tr := newTrial(t)
			tr.file("bin/docker.sh", `#!/bin/sh
[ "$1" != image ] || { echo "$ID []"; exit; }
echo "docker $1"
while [ "$1" ] && [ "$1" != --cidfile ]; do shift; done
file=$2
[ -z "$file" ] || `+test.write+"\n")
			require.NoError(t, os.Rename(filepath.Join(tr.place.WorkDir, "bin", "docker.sh"),
				filepath.Join(tr.place.WorkDir, "bin", "docker")))
			var mu sync.Mutex // guards the following
			var started []string
			tr.cfg.Start = func(ctx context.Context, cmd proc.Command) (*proc.Process, error) {
				mu.Lock()
				started = append(started, strings.Join(cmd.Argv[1:], " "))
				mu.Unlock()
				return proc.Start(ctx, cmd)
			}
			tr.workflow("- run: echo \"$GITHUB_WORKSPACE/bin\" >> \"$GITHUB_PATH\"\n" +
				"- {uses: 'docker://none', env: {TO: '" + to + "', ID: '" + id + "'}}\n")
			tr.succeed()
			require.Contains(t, tr.log.String(), "docker run\n")
			mu.Lock()
			defer mu.Unlock()
			if test.removed {
				require.Contains(t, started, "rm --force "+id)
			} else {
				require.Len(t, started, 3)
			}
		})
	}
}
