package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/standalone/checkout"
	"github.com/stepmux/stepmux/internal/testing/liveheap"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/archive"
)

// A project with many files, and with some that no build may have: of those few are told, and nothing waits for them.
func TestAProjectOfManyFilesWithSocketsAndLinksIsPacked(t *testing.T) { // not parallel: it measures the heap
	dir := sshtest.SocketDir(t)
	const files, each = 3000, 20
	var want []string
	for i := range files {
		name := fmt.Sprintf("d%d/f%d", i%30, i)
		if i < 30 {
			require.NoError(t, os.Mkdir(filepath.Join(dir, filepath.Dir(name)), 0o755))
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		want = append(want, name)
	}
	for i := range each {
		in := func(name string) string { return filepath.Join(dir, fmt.Sprintf("%s%d", name, i)) }
		require.NoError(t, unix.Mkfifo(in("fifo"), 0o600))
		require.NoError(t, os.Symlink("/etc/passwd", in("absolute")))
		require.NoError(t, os.Symlink("../../x", in("above")))
		require.NoError(t, os.Symlink("loop", in("loop")))
		listener, err := net.Listen("unix", in("s"))
		require.NoError(t, err)
		defer listener.Close()
	}
	var warnings bytes.Buffer
	before := liveheap.Bytes()
	p, err := packProject(t.Context(), dir, checkout.Copy{}, &warnings)
	require.NoError(t, err)
	defer p.Close()
	require.Less(t, liveheap.Bytes()-before, int64(1<<20), "nothing of it is kept in memory")
	lines := strings.Split(strings.TrimSpace(warnings.String()), "\n")
	require.LessOrEqual(t, len(lines), maxWarnings+1, "%s", &warnings)
	require.Contains(t, warnings.String(), "left out")
	to := t.TempDir()
	n, err := archive.Extract(t.Context(), p.file, to, archive.Bounds{})
	require.NoError(t, err)
	for _, name := range want {
		require.FileExists(t, filepath.Join(to, name))
	}
	for _, name := range []string{"fifo0", "absolute0", "above0", "s0"} {
		_, err := os.Lstat(filepath.Join(to, name))
		require.ErrorIs(t, err, os.ErrNotExist, name)
	}
	require.GreaterOrEqual(t, n, files)
}

// Symptom: on a machine without git, a project that is named by a link had no files.
func TestAProjectBehindALinkIsPackedWithoutGit(t *testing.T) {
	dir, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sub", "file"), nil, 0o600))
	require.NoError(t, os.Symlink(dir, link))
	names, err := filesWithoutGit(t.Context(), link, func(text string) { t.Error(text) })
	require.NoError(t, err)
	require.Equal(t, []string{"sub/file"}, names)
}

// Symptom: such a pattern failed each build, after its job, as a failure of the system.
func TestAPatternOfArtifactsThatIsNotUTF8IsRefused(t *testing.T) {
	err := (&projectFlags{artifacts: []string{"caf\xe9"}}).checkProject()
	require.EqualError(t, err, `--artifacts "caf\xe9": it is not valid UTF-8; use ? for a byte of a name`)
	require.NoError(t, (&projectFlags{artifacts: []string{"café", "caf?"}}).checkProject())
}

// Symptom: a build did not begin if the project had one file or directory that its user may not read, or a broken
// repository in it.
func TestAProjectIsPackedWithoutItemsThatCannotBeRead(t *testing.T) {
	for _, name := range []string{"with git", "without git"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			texts := map[string]string{"file": "f", "key": "k", "closed/x": "x"}
			if name == "with git" {
				out, err := exec.Command("git", "init", "-q", filepath.Join(dir, "broken")).CombinedOutput()
				require.NoError(t, err, "%s", out)
				texts["broken/.git/index"], texts["broken/y"] = "no index", "y"
			}
			for name, text := range texts {
				require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			}
			want := []string{"the repository broken is left out: "}
			if name == "without git" {
				t.Setenv("PATH", t.TempDir())
				want = nil
			}
			if os.Geteuid() != 0 {
				require.NoError(t, os.Chmod(filepath.Join(dir, "key"), 0))
				require.NoError(t, os.Chmod(filepath.Join(dir, "closed"), 0))
				defer os.Chmod(filepath.Join(dir, "closed"), 0o700)
				want = append(want, "key: left out: permission denied", "closed")
			}
			var warnings bytes.Buffer
			p, err := packProject(t.Context(), dir, checkout.Copy{}, &warnings)
			require.NoError(t, err)
			defer p.Close()
			for _, text := range want {
				require.Contains(t, warnings.String(), text)
			}
			require.Equal(t, len(want), strings.Count(warnings.String(), "\n"), "%s", &warnings)
			to := t.TempDir()
			_, err = archive.Extract(t.Context(), p.file, to, archive.Bounds{})
			require.NoError(t, err)
			require.FileExists(t, filepath.Join(to, "file"))
		})
	}
}
