package connector_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
)

// unpacking are the programs of a VM that an upload needs. gzip is not among them.
var unpacking = []string{
	"sh", "ls", "id", "uname", "od", "tr", "chmod", "mkdir", "rm", "rmdir", "mktemp", "head", "wc", "sync", "mv", "touch",
	"find", "cut", "sed", "cat", "dd", "sha256sum",
}

// carried is our program as a manager carries it.
func carried(t testing.TB) *program.Binary {
	t.Helper()
	b, err := loadCarried()
	require.NoError(t, err)
	return b
}

var loadCarried = sync.OnceValues(func() (*program.Binary, error) {
	path, err := runnertest.Packed()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	return packed(text), err
})

// packed is the program in a gzip file, or in what there is of it.
func packed(text []byte) *program.Binary {
	return program.PackedBinary(runtime.GOOS+"/"+runtime.GOARCH, func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(text)), nil
	})
}

// gzipIs puts a gzip into a directory of programs that does this before it unpacks.
func gzipIs(t testing.TB, bin, does string) {
	t.Helper()
	text := "#!/bin/sh\n" + does + "\nexec /bin/gzip \"$@\"\n"
	require.NoError(t, os.WriteFile(filepath.Join(bin, "gzip"), []byte(text), 0o700))
}

func TestACarriedProgramIsSentPackedWhereTheVMCanUnpack(t *testing.T) {
	for name, binary := range map[string]*program.Binary{"carried": carried(t), "a file": binary(t)} {
		t.Run(name, func(t *testing.T) {
			bin, used := onlyPrograms(t, unpacking...), filepath.Join(t.TempDir(), "used")
			gzipIs(t, bin, "echo >>"+used)
			v := newBareVM(t, "PATH="+bin)
			bootstrap := func(c *connector.Config) { c.Bootstrap = []*program.Binary{binary} }
			require.NoError(t, v.build(t, "b1", bootstrap).runs(t))
			requireProgram(t, filepath.Join(v.cache, "stepmux"))
			require.FileExists(t, used)

			require.NoError(t, os.Remove(used))
			require.NoError(t, v.build(t, "b2", bootstrap).runs(t))
			require.NoFileExists(t, used, "it was sent again")
		})
	}
}

func TestACarriedProgramIsSentAsItIsWhereTheVMHasNoGzip(t *testing.T) {
	v := newBareVM(t, "PATH="+onlyPrograms(t, unpacking...))
	b := v.build(t, "b1", nil)
	require.NoError(t, b.runs(t))
	requireProgram(t, filepath.Join(v.cache, "stepmux"))
}

func TestACarriedProgramThatIsDamagedIsNotSent(t *testing.T) {
	path, err := runnertest.Packed()
	require.NoError(t, err)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, size := range []int{0, 5, 100_000} {
		v := newBareVM(t)
		b := v.build(t, "b1", func(c *connector.Config) { c.Bootstrap = []*program.Binary{packed(text[:size])} })
		require.ErrorContains(t, b.runs(t), "the stepmux for "+runtime.GOOS+"/"+runtime.GOARCH+" in this program: ")
		requireEmptyDir(t, v.cache)
	}
}

func TestAnUploadThatCannotBeUnpackedLeavesNothingAndSaysWhy(t *testing.T) {
	bin := onlyPrograms(t, unpacking...)
	gzipIs(t, bin, "head -c 100000; echo 'gzip: stdout: No space left on device' >&2; exit 1")
	v := newBareVM(t, "PATH="+bin)
	b := v.build(t, "b1", nil)
	err := b.runs(t)
	require.ErrorContains(t, err, "in the user's cache: gzip: stdout: No space left on device")
	require.ErrorContains(t, err, "make room, or install it there")
	requireEmptyDir(t, v.cache)
}

func requireEmptyDir(t testing.TB, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}
