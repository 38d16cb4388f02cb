package archive

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// pack writes an archive of all that is in dir to a file.
func pack(t *testing.T, dir string, format Format, level Level) *os.File {
	t.Helper()
	files, _ := find(t, Selection{Dir: dir, Paths: []string{"**"}})
	file, err := os.Create(filepath.Join(t.TempDir(), "archive"))
	require.NoError(t, err)
	t.Cleanup(func() { file.Close() })
	require.NoError(t, files.Write(t.Context(), file, format, level))
	return file
}

// listing says all about a tree that an archive keeps.
func listing(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := d.Info()
		require.NoError(t, err)
		name, err := filepath.Rel(dir, at)
		require.NoError(t, err)
		if name == "." {
			return nil
		}
		text := info.Mode().String()
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(at)
			require.NoError(t, err)
			text += " " + string(data)
		case info.Mode().Type() == fs.ModeSymlink:
			target, err := os.Readlink(at)
			require.NoError(t, err)
			text += " " + target
		}
		if info.Mode().Type() != fs.ModeSymlink {
			text += " " + info.ModTime().UTC().Format(time.DateTime)
		}
		all[name] = text
		return nil
	}))
	return all
}

func TestPackedFilesAreUnpackedUnchanged(t *testing.T) {
	random := strings.Repeat("0123456789", 100_000)
	dir := tree(t, map[string]string{
		"a": "A", "empty": "", "d/b": random, "d/e/": "", "d/link": "->../a", "d/dangling": "->nothing", "ü ö": "x",
		"back\\slash": "y", "exe": "#!/bin/sh",
	})
	require.NoError(t, os.Chmod(filepath.Join(dir, "exe"), 0o755))
	require.NoError(t, os.Chmod(filepath.Join(dir, "a"), 0o440))
	past := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	for _, name := range []string{"a", "exe", "d/b", "d/e", "d"} {
		require.NoError(t, os.Chtimes(filepath.Join(dir, name), past, past))
	}
	for _, format := range []Format{Zip, ZipZstd, TarZstd} {
		for level := range levels {
			to := tree(t, map[string]string{"a": "older", "d/b": "older", "d/link": "->b", "kept": ""})
			files, err := Extract(t.Context(), pack(t, dir, format, level), to, Bounds{})
			require.NoError(t, err, "%s %s", format, level)
			require.Equal(t, 8, files)
			require.NoError(t, os.Remove(filepath.Join(to, "kept")))
			require.Equal(t, listing(t, dir), listing(t, to), "%s %s", format, level)
		}
	}
}

// The standard library's zip reader is that of another author than the compressors.
func TestZipIsReadableByOthers(t *testing.T) {
	dir := tree(t, map[string]string{"a": "A", "d/b": strings.Repeat("b", 1<<20)})
	file := pack(t, dir, Zip, "slowest")
	info, err := file.Stat()
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(10<<10))
	z, err := zip.NewReader(file, info.Size())
	require.NoError(t, err)
	data, err := fs.ReadFile(z, "d/b")
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("b", 1<<20), string(data))
}

func TestGzipHasAMemberForEachFile(t *testing.T) {
	dir := tree(t, map[string]string{"a": "A", "d/b": "B", "d/ω": "C", "d/link": "->b"})
	r, err := gzip.NewReader(reread(t, pack(t, dir, Gzip, "default")))
	require.NoError(t, err)
	data, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Equal(t, "ABC", string(data))
	require.Equal(t, "a", r.Name)
}

func reread(t *testing.T, file *os.File) *bytes.Reader {
	t.Helper()
	data, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	return bytes.NewReader(data)
}

func TestRawIsForOneFile(t *testing.T) {
	dir := tree(t, map[string]string{"d/report.xml": "<x/>"})
	data, err := io.ReadAll(reread(t, pack(t, dir, Raw, "default")))
	require.NoError(t, err)
	require.Equal(t, "<x/>", string(data))

	require.NoError(t, os.WriteFile(filepath.Join(dir, "d", "second"), nil, 0o644))
	files, _ := find(t, Selection{Dir: dir, Paths: []string{"d"}})
	err = files.Write(t.Context(), io.Discard, Raw, "default")
	require.EqualError(t, err, "archive d/second: the format raw is for one file, and there is also d/report.xml: use "+
		"zip or gzip")
	err = files.Write(t.Context(), io.Discard, "rar", "default")
	require.ErrorContains(t, err, `the archive format "rar" is not one of`)
}

// A log is often still written while it is archived.
func TestAFileMayGrowOrVanishWhileItIsArchived(t *testing.T) {
	dir := tree(t, map[string]string{"a": "A", "log": "1"})
	files, _ := find(t, Selection{Dir: dir, Paths: []string{"**"}})
	require.NoError(t, os.Remove(filepath.Join(dir, "a")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "log"), []byte("1234"), 0o644))
	for _, format := range []Format{Zip, TarZstd} {
		file, err := os.Create(filepath.Join(t.TempDir(), "archive"))
		require.NoError(t, err)
		defer file.Close()
		require.NoError(t, files.Write(t.Context(), file, format, "fast"))
		to := tree(t, nil)
		_, err = Extract(t.Context(), file, to, Bounds{})
		require.NoError(t, err)
		data, err := os.ReadFile(filepath.Join(to, "log"))
		require.NoError(t, err)
		require.Equal(t, "1234", string(data))
		require.NoFileExists(t, filepath.Join(to, "a"))
	}
}

func TestPackingAndUnpackingEndWithTheirContext(t *testing.T) {
	dir := tree(t, map[string]string{"a": "A"})
	files, _ := find(t, Selection{Dir: dir, Paths: []string{"a"}})
	file := pack(t, dir, Zip, "fast")
	tarFile := pack(t, dir, TarZstd, "fast")
	why := errors.New("cancelled")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	for _, format := range []Format{Zip, ZipZstd, TarZstd, Gzip, Raw} {
		require.ErrorIs(t, files.Write(ctx, io.Discard, format, "fast"), why)
	}
	for _, f := range []*os.File{file, tarFile} {
		_, err := Extract(ctx, f, t.TempDir(), Bounds{})
		require.ErrorIs(t, err, why)
	}
	_, err := Find(ctx, Selection{Dir: dir, Paths: []string{"a"}, Warn: func(string) {}, Info: func(string) {}})
	require.ErrorIs(t, err, why)
}

func TestReplaceLeavesTheOldFileUntilTheNewOneIsComplete(t *testing.T) {
	name := filepath.Join(t.TempDir(), "new", "file")
	write := func(text string, err error) error {
		return Replace(name, func(f *os.File) error {
			_, writeErr := f.WriteString(text)
			require.NoError(t, writeErr)
			return err
		})
	}
	require.NoError(t, write("one", nil))
	require.ErrorIs(t, write("two", io.ErrShortWrite), io.ErrShortWrite)
	data, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, "one", string(data))
	left, err := os.ReadDir(filepath.Dir(name))
	require.NoError(t, err)
	require.Len(t, left, 1)
}

func TestLevelsHaveNames(t *testing.T) {
	for name, want := range map[string]Level{"": "default", "Fastest": "fastest", "slowest": "slowest"} {
		got, err := ParseLevel(name)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := ParseLevel("9")
	require.ErrorContains(t, err, "not one of fastest, fast, default, slow and slowest")
}

// Symptom: each command for caches that was killed left its part of an archive on the VM for ever.
func TestPartsOfKilledProcessesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, strings.Repeat("n", 251)+".zip")
	parts := func() (names []string) {
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, e := range entries {
			if e.Name() != filepath.Base(name) {
				names = append(names, e.Name())
			}
		}
		return names
	}
	killed := errors.New("killed")
	require.PanicsWithError(t, killed.Error(), func() {
		_ = Replace(name, func(*os.File) error { panic(killed) })
	})
	require.Len(t, parts(), 1)
	replace := func() { require.NoError(t, Replace(name, func(*os.File) error { return nil })) }
	replace()
	require.Len(t, parts(), 1, "its process may still run")

	was := keepPart
	t.Cleanup(func() { keepPart = was })
	keepPart = 0
	require.NoError(t, os.WriteFile(filepath.Join(dir, "n.part-1"), nil, 0o600))
	replace()
	require.Equal(t, []string{"n.part-1"}, parts())
}
