package archive

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"encoding/binary"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

// entry is an entry of an archive that is written without any check.
type entry struct {
	name, content string
	mode          fs.FileMode
}

func zipOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, e := range entries {
		h := &zip.FileHeader{Name: e.name, Method: zip.Deflate}
		h.SetMode(e.mode)
		w, err := z.CreateHeader(h)
		require.NoError(t, err)
		_, err = io.WriteString(w, e.content)
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	return b.Bytes()
}

func tarOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	c, err := zstd.NewWriter(&b)
	require.NoError(t, err)
	w := tar.NewWriter(c)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: int64(e.mode.Perm()), Typeflag: tar.TypeReg}
		switch e.mode.Type() {
		case fs.ModeDir:
			h.Typeflag = tar.TypeDir
		case fs.ModeSymlink:
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.content
		case fs.ModeNamedPipe:
			h.Typeflag = tar.TypeFifo
		case fs.ModeIrregular:
			h.Typeflag, h.Linkname = tar.TypeLink, e.content
		default:
			h.Size = int64(len(e.content))
		}
		require.NoError(t, w.WriteHeader(h))
		if h.Typeflag == tar.TypeReg {
			_, err := io.WriteString(w, e.content)
			require.NoError(t, err)
		}
	}
	require.NoError(t, w.Close())
	require.NoError(t, c.Close())
	return b.Bytes()
}

func fileOf(t testing.TB, data []byte) *os.File {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "archive"))
	require.NoError(t, err)
	t.Cleanup(func() { file.Close() })
	_, err = file.Write(data)
	require.NoError(t, err)
	return file
}

const (
	regular = fs.FileMode(0o644)
	symlink = fs.ModeSymlink | 0o777
)

//stepmux:faults artifacts | An archive writes outside of the project, or through a symbolic link that an earlier job
//stepmux:more left
//stepmux:with remote/archive.TestNothingIsWrittenThroughLinksThatAreThere, remote/archive.FuzzExtract
func TestHostileEntriesAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		entries []entry
		want    string
	}{
		"up":             {[]entry{{"../evil", "x", regular}}, "the entry's name has .. in it"},
		"up, inside":     {[]entry{{"a/../../evil", "x", regular}}, "the entry's name has .. in it"},
		"up and back":    {[]entry{{"a/../b", "x", regular}}, "the entry's name has an empty part, . or .. in it"},
		"absolute":       {[]entry{{"/tmp/evil", "x", regular}}, "the entry's name is an absolute path"},
		"NUL":            {[]entry{{"a\x00b", "x", regular}}, ""},
		"no name":        {[]entry{{"", "x", regular}}, "the entry's name has an empty part"},
		"long":           {[]entry{{strings.Repeat("a/", 2100) + "a", "x", regular}}, "longer than 4096 bytes"},
		"twice":          {[]entry{{"a", "x", regular}, {"a", "y", regular}}, "the name is in the archive twice"},
		"file, then dir": {[]entry{{"a", "x", regular}, {"a/b", "y", regular}}, "make its directory: file exists"},
		"dir, then file": {[]entry{{"a/b", "y", regular}, {"a", "x", regular}}, "there is a directory of that name"},
		"link out":       {[]entry{{"l", "..", symlink}}, "leads to .., outside"},
		"link out by way of a directory to come": {
			[]entry{{"l", "later/../../x", symlink}}, "leads to later/../../x, outside",
		},
		"link to root": {[]entry{{"l", "/etc", symlink}}, "leads to /etc, outside"},
		"links out by way of others": {
			[]entry{{"d/e/here", "../..", symlink}, {"d/e/out", "here/..", symlink}}, "leads to here/.., outside",
		},
		"links out by way of more than os.Root follows": {[]entry{
			{"l", ".", symlink}, {"d/e/here", "../..", symlink}, {"out", strings.Repeat("l/", 9) + "d/e/here/..", symlink},
		}, "d/e/here/.., outside"},
		"only the last":  {[]entry{{"fine", "x", regular}, {"l", "/etc", symlink}}, "leads to /etc, outside"},
		"through a link": {[]entry{{"l", "d", symlink}, {"l/x", "x", regular}}, "there is a directory of that name"},
		"long link":      {[]entry{{"l", strings.Repeat("x", 5000), symlink}}, ""},
		"pipe":           {[]entry{{"p", "", fs.ModeNamedPipe | 0o644}}, "the entry is a device, a pipe"},
	} {
		t.Run(name, func(t *testing.T) {
			for kind, data := range map[string][]byte{"zip": zipOf(t, c.entries...), "tar": tarOfOrNil(t, c.entries)} {
				if data == nil {
					continue
				}
				above := t.TempDir()
				dir := filepath.Join(above, "in")
				require.NoError(t, os.Mkdir(dir, 0o755))
				_, err := Extract(t.Context(), fileOf(t, data), dir, Bounds{})
				require.Error(t, err, kind)
				require.ErrorContains(t, err, c.want, kind)
				require.Less(t, len(err.Error()), 1000)
				left, err := os.ReadDir(above)
				require.NoError(t, err)
				require.Len(t, left, 1)
				require.NoFileExists(t, filepath.Join(dir, "fine"))
			}
		})
	}
	_, err := Extract(t.Context(), fileOf(t, tarOf(t, entry{"h", "/etc/passwd", fs.ModeIrregular})), t.TempDir(), Bounds{})
	require.ErrorContains(t, err, "a hard link")
}

// tarOfOrNil returns nil for entries that a tar archive cannot have.
func tarOfOrNil(t *testing.T, entries []entry) []byte {
	for _, e := range entries {
		if strings.Contains(e.name, "\x00") || e.name == "" {
			return nil
		}
	}
	return tarOf(t, entries...)
}

// Symptom: all but the first of the links that lead outside stayed, and all of them if a later link could not be made.
func TestNoLinkThatLeadsOutsideStays(t *testing.T) {
	evil := []entry{
		{"d/here", "..", symlink}, {"d/out", "here/..", symlink}, {"d/away", "here/../x", symlink},
	}
	for _, last := range []string{"fine", strings.Repeat("x", 300)} { // no file system takes the longer name
		dir := t.TempDir()
		_, err := Extract(t.Context(), fileOf(t, zipOf(t, append(evil, entry{last, "d", symlink})...)), dir, Bounds{})
		require.Error(t, err)
		for _, name := range []string{"out", "away"} {
			_, err := os.Lstat(filepath.Join(dir, "d", name))
			require.ErrorIs(t, err, fs.ErrNotExist, "%s, with %s", name, last)
		}
	}
}

func TestLinksThatLeadInsideByManyOthersAreKept(t *testing.T) {
	dir := t.TempDir()
	far := strings.Repeat("l/", 9)
	data := zipOf(t, entry{"l", ".", symlink}, entry{"f", "x", regular}, entry{"in", far + "f", symlink},
		entry{"nowhere", far + "none", symlink}, entry{"below a file", far + "f/none", symlink},
		entry{"loop", "loop", symlink})
	n, err := Extract(t.Context(), fileOf(t, data), dir, Bounds{})
	require.NoError(t, err)
	require.Equal(t, 6, n)
}

// A job of a project may have made links in the working directory, and its artifacts must not go through them.
func TestNothingIsWrittenThroughLinksThatAreThere(t *testing.T) {
	above := t.TempDir()
	outside := filepath.Join(above, "outside")
	require.NoError(t, os.Mkdir(outside, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(outside, "file"), []byte("kept"), 0o644))
	dir := filepath.Join(above, "in")
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, os.Symlink("../outside", filepath.Join(dir, "d")))
	require.NoError(t, os.Symlink("../outside/file", filepath.Join(dir, "f")))
	_, err := Extract(t.Context(), fileOf(t, zipOf(t, entry{"d/new", "x", regular})), dir, Bounds{})
	require.Error(t, err)
	_, err = Extract(t.Context(), fileOf(t, zipOf(t, entry{"f", "x", regular})), dir, Bounds{})
	require.NoError(t, err)
	data, err := os.ReadFile(filepath.Join(outside, "file"))
	require.NoError(t, err)
	require.Equal(t, "kept", string(data))
	left, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Len(t, left, 1)
}

// Symptom: a cache with a module cache of Go could not be restored by an ordinary user where an earlier build had used
// it, because Go makes its directories read-only.
func TestFilesInReadOnlyDirectoriesAreReplaced(t *testing.T) {
	dir := t.TempDir()
	below := filepath.Join(dir, "go/mod")
	require.NoError(t, os.MkdirAll(below, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(below, "a"), []byte("old"), 0o444))
	require.NoError(t, os.Chmod(below, 0o555))
	require.NoError(t, os.Chmod(filepath.Dir(below), 0o555))
	data := zipOf(t, entry{"go/new/", "", fs.ModeDir | 0o555}, entry{"go/mod/a", "new", 0o444},
		entry{"go/mod/b/c", "new", 0o444}, entry{"go/l", "mod", symlink})
	n, err := Extract(t.Context(), fileOf(t, data), dir, Bounds{})
	require.NoError(t, err)
	require.Equal(t, 3, n)
	for _, name := range []string{"a", "b/c"} {
		text, err := os.ReadFile(filepath.Join(dir, "go/l", name))
		require.NoError(t, err)
		require.Equal(t, "new", string(text))
	}
}

func TestModesHaveNoSetuidBit(t *testing.T) {
	dir := t.TempDir()
	data := zipOf(t, entry{"su", "x", fs.ModeSetuid | fs.ModeSetgid | 0o755},
		entry{"d/", "", fs.ModeDir | fs.ModeSetgid | fs.ModeSticky | 0o500})
	_, err := Extract(t.Context(), fileOf(t, data), dir, Bounds{})
	require.NoError(t, err)
	info, err := os.Stat(filepath.Join(dir, "su"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o755), info.Mode())
	info, err = os.Stat(filepath.Join(dir, "d"))
	require.NoError(t, err)
	require.Equal(t, fs.ModeDir|0o700, info.Mode(), "and the next job can write there")
}

// A virtual environment of Python has links to the system's python.
func TestLinksThatLeadOutsideAreKeptOnDemand(t *testing.T) {
	dir := t.TempDir()
	data := zipOf(t, entry{"venv/bin/python", "/usr/bin/python3", symlink}, entry{"venv/x", "x", regular},
		entry{"venv/up", "../../..", symlink}, entry{"venv/bin/python3", "python", symlink})
	_, err := Extract(t.Context(), fileOf(t, data), dir, Bounds{})
	require.ErrorContains(t, err, "set the variable STEPMUX_OUTSIDE_LINKS to true")
	n, err := Extract(t.Context(), fileOf(t, data), dir, Bounds{OutsideLinks: true})
	require.NoError(t, err)
	require.Equal(t, 4, n)
	target, err := os.Readlink(filepath.Join(dir, "venv/bin/python"))
	require.NoError(t, err)
	require.Equal(t, "/usr/bin/python3", target)
}

//stepmux:faults artifacts | An archive that says nothing true about sizes fills the disk or the memory
//stepmux:with remote/archive.TestAZipThatLiesAboutSizesIsRefused
//stepmux:with internal/boundedzip.TestDirectoryOfAnArchiveIsBoundedBeforeItIsInMemory
func TestSizesAreBounded(t *testing.T) {
	bomb := strings.Repeat("\x00", 1<<20)
	many := []entry{{"a", bomb, regular}, {"b", bomb, regular}}
	for kind, data := range map[string][]byte{"zip": zipOf(t, many...), "tar": tarOf(t, many...)} {
		dir := t.TempDir()
		_, err := Extract(t.Context(), fileOf(t, data), dir, Bounds{Bytes: 2<<20 - 1})
		require.ErrorContains(t, err, "larger than the limit of 2097151 bytes", kind)
		require.NoFileExists(t, filepath.Join(dir, "a"), kind)
		_, err = Extract(t.Context(), fileOf(t, data), t.TempDir(), Bounds{Bytes: 2 << 20})
		require.NoError(t, err, kind)
		_, err = Extract(t.Context(), fileOf(t, data), t.TempDir(), Bounds{Entries: 1})
		require.ErrorContains(t, err, "entries", kind)
	}
}

// The archive says that the file is smaller, or larger, than it is.
// Symptom: an archive of 450 KB, of many directories with long names, took 640 MB of memory.
func TestNamesThatAreLongAreRefusedBeforeTheyTakeMemory(t *testing.T) {
	long := func(n int) string { return strings.Repeat(strings.Repeat("n", 199)+"/", 19) + strconv.Itoa(n) }
	var names, targets []entry
	for n := range 2000 {
		names = append(names, entry{long(n), "", fs.ModeDir | 0o755})
		targets = append(targets, entry{strconv.Itoa(n), long(n), fs.ModeSymlink})
	}
	for _, entries := range [][]entry{names, targets} {
		_, err := Extract(t.Context(), fileOf(t, tarOf(t, entries...)), t.TempDir(), Bounds{})
		require.ErrorContains(t, err, "longer than 256 bytes on average")
	}
}

func TestAZipThatLiesAboutSizesIsRefused(t *testing.T) {
	for _, size := range []uint32{0, 1, 999, 1001, 1 << 20} {
		data := zipOf(t, entry{"a", strings.Repeat("x", 1000), regular})
		at := bytes.Index(data, []byte("PK\x01\x02"))
		require.Positive(t, at)
		binary.LittleEndian.PutUint32(data[at+24:], size)
		dir := t.TempDir()
		_, err := Extract(t.Context(), fileOf(t, data), dir, Bounds{})
		require.Error(t, err, "%d", size)
		if info, statErr := os.Stat(filepath.Join(dir, "a")); statErr == nil {
			require.LessOrEqual(t, info.Size(), int64(size)+1)
		}
	}
}

func TestOtherFilesAreNoArchives(t *testing.T) {
	whole := zipOf(t, entry{"a", "x", regular})
	tarred := tarOf(t, entry{"a", strings.Repeat("x", 1000), regular})
	for want, data := range map[string][]byte{
		"the archive is empty": {},
		`the file is neither a zip archive nor a tar archive in zstd: it begins with "<!DOCTYPE html>"`: []byte(
			"<!DOCTYPE html>\n<html>"),
		"the file is not a zip archive": whole[:len(whole)-5],
		"read the tar archive":          tarred[:4],
		`begins with "[31m"`:            []byte("\x1b[31m"),
	} {
		_, err := Extract(t.Context(), fileOf(t, data), t.TempDir(), Bounds{})
		require.ErrorContains(t, err, want)
	}
}

// FuzzExtract holds that nothing is written outside of the directory, nor more than the bounds allow.
func FuzzExtract(f *testing.F) {
	f.Add(zipOf(f, entry{"a/b", "x", regular}, entry{"a/l", "b", symlink}, entry{"c/", "", fs.ModeDir | 0o755}))
	f.Add(zipOf(f, entry{"../evil", "x", regular}))
	f.Add(zipOf(f, entry{"l", "..", symlink}, entry{"l/evil", "x", regular}))
	f.Add(tarOf(f, entry{"a/b", "x", regular}, entry{"a/l", "../..", symlink}))
	f.Add(tarOf(f, entry{"a", "x", regular}, entry{"a", "/etc", symlink}, entry{"a/evil", "", regular}))
	const most = 1 << 20
	f.Fuzz(func(t *testing.T, data []byte) {
		above := t.TempDir()
		dir := filepath.Join(above, "in")
		require.NoError(t, os.Mkdir(dir, 0o755))
		_, err := Extract(t.Context(), fileOf(t, data), dir, Bounds{Bytes: most, Entries: 50})
		if err != nil {
			require.Less(t, len(err.Error()), 2000)
		}
		left, readErr := os.ReadDir(above)
		require.NoError(t, readErr)
		require.Len(t, left, 1)
		root, readErr := os.OpenRoot(dir)
		require.NoError(t, readErr)
		defer root.Close()
		var sum int64
		require.NoError(t, filepath.WalkDir(dir, func(at string, d fs.DirEntry, walkErr error) error {
			require.NoError(t, walkErr)
			info, infoErr := d.Info()
			require.NoError(t, infoErr)
			if info.Mode().IsRegular() {
				sum += info.Size()
			}
			require.Zero(t, info.Mode()&(fs.ModeSetuid|fs.ModeSetgid), at)
			return nil
		}))
		require.LessOrEqual(t, sum, int64(most)+1)
	})
}
