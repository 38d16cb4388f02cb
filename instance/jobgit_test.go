package instance_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector/files"
	"github.com/stepmux/stepmux/internal/standalone/checkout"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/archive"
)

// repository returns a project of one file with the repository that jobs of whole pipelines have.
func repository(t *testing.T) *files.Project {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a"), []byte("a"), 0o644))
	for _, args := range [][]string{
		{"init", "-q", "-b", "main"}, {"add", "a"}, {"commit", "-q", "-m", "one"}, {"tag", "v1"},
	} {
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@x.test"}, args...)...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	made, err := checkout.CopyTo(t.Context(), dir, filepath.Join(t.TempDir(), "git"), checkout.Copying{Depth: 1})
	require.NoError(t, err)
	found, err := archive.Named(dir, []string{"a"}, func(text string) { t.Error(text) })
	require.NoError(t, err)
	defer found.Close()
	require.NoError(t, found.Beside(made.Dir, made.Names))
	file, err := os.Create(filepath.Join(t.TempDir(), "packed"))
	require.NoError(t, err)
	defer file.Close()
	sum := sha256.New()
	require.NoError(t, found.Write(t.Context(), io.MultiWriter(file, sum), archive.TarZstd, "fast"))
	info, err := file.Stat()
	require.NoError(t, err)
	return &files.Project{
		Digest: hex.EncodeToString(sum.Sum(nil)), Size: info.Size(),
		Open: func(context.Context) (io.ReadSeekCloser, error) { return os.Open(file.Name()) },
	}
}

// Git refuses a repository of another user: that of a build is the build user's, with and without isolation.
func TestGitWorksInTheProjectOfABuildUser(t *testing.T) {
	v := rootSite(t)
	project := repository(t)
	for i, level := range []string{"processes", "private", "off"} {
		t.Run(level, func(t *testing.T) {
			first := firstBuildID + 100 + i
			p := v.as(t, fmt.Sprintf("%d-%d", first, first), level, isolationRoutes[i])
			job := script("set -e; git describe --tags --dirty; git status --porcelain --branch; id -u")
			job.Project = project
			out := &sshtest.Log{}
			require.NoError(t, build(sshtest.Within(t), p, "git-"+level, job, out), out)
			require.Equal(t, fmt.Sprintf("v1\n## main\n%d\n", first), jobLines(out))
		})
	}
}
