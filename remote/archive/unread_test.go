package archive

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Symptom: one file without rights, such as a key in dist, lost all artifacts, and failed a build that had
// succeeded.
func TestFilesThatMayNotBeReadAreLeftOutAndNamed(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root can read all files")
	}
	for _, format := range []Format{Zip, ZipZstd, TarZstd, Gzip, Raw} {
		t.Run(string(format), func(t *testing.T) {
			dir := tree(t, map[string]string{"a/key": "k", "b": "B", "c/x": "x"})
			require.NoError(t, os.Chmod(filepath.Join(dir, "a/key"), 0))
			require.NoError(t, os.Chmod(filepath.Join(dir, "c"), 0))
			defer os.Chmod(filepath.Join(dir, "c"), 0o700)
			files, said := find(t, Selection{Dir: dir, Paths: []string{"*"}})
			file, err := os.Create(filepath.Join(t.TempDir(), "archive"))
			require.NoError(t, err)
			defer file.Close()
			for range 2 { // an upload is repeated
				require.NoError(t, file.Truncate(0))
				_, err = file.Seek(0, io.SeekStart)
				require.NoError(t, err)
				require.NoError(t, files.Write(t.Context(), file, format, "fast"))
			}
			require.Equal(t, []string{"c: permission denied", "a/key: left out: permission denied"}, said.warnings)
			if format == Gzip || format == Raw {
				return
			}
			to := t.TempDir()
			_, err = Extract(t.Context(), file, to, Bounds{})
			require.NoError(t, err)
			require.FileExists(t, filepath.Join(to, "b"))
			require.NoFileExists(t, filepath.Join(to, "a/key"))
		})
	}
}

// Symptom: a file that could not be read to its end lost all artifacts. The kernel has such files.
//
//stepmux:faults users | One file that cannot be read loses the artifacts, the cache or the project, or makes the result
//stepmux:more the system's failure
//stepmux:with remote/archive.TestPathsThatCannotBeUnpackedAreLeftOut
//stepmux:with remote/project.TestArtifactsThatCannotBeReadAreNoFailure
//stepmux:with remote/jobcache.TestACacheWithAFileThatCannotBeReadIsKept
//stepmux:with remote/artifacts.TestArtifactsWithAFileThatCannotBeReadAreUploaded
//stepmux:with cmd/stepmux.TestAProjectIsPackedWithoutItemsThatCannotBeRead
func TestAFileThatCannotBeReadToItsEndIsArchivedInPart(t *testing.T) {
	for _, c := range []struct {
		format           Format
		dir, bad, good   string
		warning, content string
	}{
		{Zip, "/proc/self", "mem", "comm", "mem: only a part of it is archived: input/output error", ""},
		{
			TarZstd, "/sys/kernel", "uevent_seqnum", "fscaps", // of both, the kernel says that they have 4096 bytes
			"uevent_seqnum: only a part of it is archived: the file became shorter while it was read; zeros stand for its last ",
			"\x00\x00\x00\x00",
		},
	} {
		t.Run(string(c.format), func(t *testing.T) {
			if _, err := os.Stat(filepath.Join(c.dir, c.bad)); err != nil {
				t.Skip("part missing: ", err)
			}
			files, said := find(t, Selection{Dir: c.dir, Paths: []string{c.bad, c.good}})
			file, err := os.Create(filepath.Join(t.TempDir(), "archive"))
			require.NoError(t, err)
			defer file.Close()
			require.NoError(t, files.Write(t.Context(), file, c.format, "fast"))
			require.Contains(t, strings.Join(said.warnings, "\n"), c.warning)
			to := t.TempDir()
			_, err = Extract(t.Context(), file, to, Bounds{})
			require.NoError(t, err)
			text, err := os.ReadFile(filepath.Join(to, c.bad))
			require.NoError(t, err)
			require.True(t, strings.HasSuffix(string(text), c.content))
			text, err = os.ReadFile(filepath.Join(to, c.good))
			require.NoError(t, err)
			require.NotEmpty(t, text)
		})
	}
}

func TestOnlySomeLinesNameFilesThatCannotBeRead(t *testing.T) {
	dir := tree(t, map[string]string{"a": "A"})
	files, said := find(t, Selection{Dir: dir, Paths: []string{"a"}})
	for i := range 100 {
		files.Leave(fmt.Sprintf("file%d", i), unix.EIO)
	}
	for range 2 {
		require.NoError(t, files.Write(t.Context(), io.Discard, Zip, "fast"))
	}
	require.Len(t, said.warnings, maxLeft+1)
	require.Equal(t, "file9: left out: input/output error", said.warnings[maxLeft-1])
	require.Equal(t, "90 more files cannot be archived, or only in part", said.warnings[maxLeft])
}

// Symptom: a job made a path that is longer than Extract takes, and none of its artifacts could be unpacked.
func TestPathsThatCannotBeUnpackedAreLeftOut(t *testing.T) {
	dir := tree(t, map[string]string{"a": "A", "new\nline": "", "back\\slash": "", "\xff": ""})
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	deep := strings.Repeat(strings.Repeat("d", 200)+"/", 30)
	require.NoError(t, root.MkdirAll(deep[:len(deep)-1], 0o755))
	require.NoError(t, root.WriteFile(deep+"file", nil, 0o600))
	for i := range 260 { // long, and too many of them
		name := fmt.Sprintf("many/%s/%s%04d", strings.Repeat("e", 255), strings.Repeat("f", 250), i)
		require.NoError(t, root.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, root.Symlink(strings.Repeat("g/", 2000), name))
	}
	for _, format := range []Format{Zip, TarZstd} {
		files, said := find(t, Selection{Dir: dir, Paths: []string{"."}, OnlyInside: true})
		file, err := os.Create(filepath.Join(t.TempDir(), "archive"))
		require.NoError(t, err)
		defer file.Close()
		require.NoError(t, files.Write(t.Context(), file, format, "fast"))
		to := t.TempDir()
		n, err := Extract(t.Context(), file, to, Bounds{})
		require.NoError(t, err, format)
		require.Greater(t, n, 200)
		for _, name := range []string{"a", "new\nline", "back\\slash", "\xff"} {
			require.FileExists(t, filepath.Join(to, name))
		}
		warnings := strings.Join(said.warnings, "\n")
		require.Contains(t, warnings, "...: left out: the file's path is longer than 4096 bytes")
		require.Contains(t, warnings, ": left out: the paths of all files together are too long")
	}
}
