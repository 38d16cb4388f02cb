package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
)

// BenchmarkSources measures how a job gets its sources, by the command of the step git/clone, and by one shell that
// runs the same init, fetch, checkout and clean. dir=new is the directory of a new build, dir=again one with the clone
// of an earlier build and a file that it has left. The server is git http-backend on the same machine.
func BenchmarkSources(b *testing.B) {
	const files = 500
	root := b.TempDir()
	repo := fetchtest.NewRepository(b, filepath.Join(root, "p"))
	content := fetchtest.Files{}
	for i := range files {
		text := strings.Repeat(fmt.Sprintf("line %d\n", i), 300)
		content[fmt.Sprintf("dir%d/file%d.go", i%20, i)] = fetchtest.File{Content: text}
	}
	repo.Commit("main", content)
	content["new"] = fetchtest.File{Content: "new"}
	commit := repo.Commit("main", content)
	server := fetchtest.ServeGit(b, root)
	server.User, server.Password = "gitlab-ci-token", "secret"
	end, err := runnertest.Program()
	require.NoError(b, err)
	const refspec = "+refs/heads/main:refs/remotes/origin/main"
	address := server.URL + "/p"
	withLogin := strings.Replace(address, "http://", "http://gitlab-ci-token:secret@", 1)
	shell := fmt.Sprintf(`set -e
git init -q .
git remote add origin %[1]s 2>/dev/null || git remote set-url origin %[1]s
git fetch -q origin --no-recurse-submodules %[2]s --depth 20 --prune
git -c submodule.recurse=false checkout -f -q %[3]s
git clean -ffdxq
`, withLogin, refspec, commit)
	ways := map[string]func(dir string) *exec.Cmd{
		"shell": func(string) *exec.Cmd { return exec.Command("sh", "-c", shell) },
		"step": func(dir string) *exec.Cmd {
			cmd := exec.Command(end, "steps", "clone", "--url", address, "--revision", commit, "--refspec", refspec,
				"--depth", "20", "--dir", dir)
			cmd.Env = append(os.Environ(), "CI_JOB_TOKEN=secret")
			return cmd
		},
	}
	for _, again := range []bool{false, true} {
		name := map[bool]string{false: "dir=new", true: "dir=again"}[again]
		b.Run(name, func(b *testing.B) {
			var all []candidate
			for _, way := range []string{"step", "shell"} {
				old := b.TempDir()
				all = append(all, candidate{name: way, run: func(r *results) error {
					dir := old
					if !again {
						dir = b.TempDir()
					} else if err := os.WriteFile(filepath.Join(dir, "made"), []byte("x"), 0o600); err != nil {
						return err
					}
					cmd := ways[way](dir)
					cmd.Dir = dir
					begin := time.Now()
					out, err := cmd.CombinedOutput()
					r.add(way, millis(time.Since(begin)))
					if err != nil {
						return fmt.Errorf("%s: %w: %s", way, err, out)
					}
					if !again {
						return os.RemoveAll(dir)
					}
					return nil
				}})
			}
			r := inTurns(b, steadier, all)
			for _, way := range names(all) {
				r.median(way, way+"-ms")
			}
			r.ratio("step", "shell", "shell")
		})
	}
}
