package pages

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const size = 16 << 20

// Symptom: a step runner that waited for its job had 8 MiB of its program mapped, most of which only its start needs.
func TestPagesThatNobodyHasWrittenAreUnmapped(t *testing.T) {
	content := mapFile(t)
	require.Equal(t, size, bytes.Count(content, []byte("x"))) // touches each page
	protect(t, content)
	before := mapped(t)
	unmap()
	require.Less(t, mapped(t), before-size/2)
	require.Equal(t, size, bytes.Count(content, []byte("x")), "the pages are mapped again")
}

// A dynamic linker does this to the program.
func TestPagesThatWereWrittenBeforeTheyWereProtectedStay(t *testing.T) {
	content := mapFile(t)
	content[size/2] = 'y'
	protect(t, content)
	unmap()
	require.Equal(t, byte('y'), content[size/2])
}

// mapFile maps a file of x, as a program's file is mapped.
func mapFile(t *testing.T) []byte {
	t.Helper()
	name := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(name, bytes.Repeat([]byte("x"), size), 0o600))
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	content, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(content)) })
	return content
}

func protect(t *testing.T, content []byte) {
	t.Helper()
	require.NoError(t, unix.Mprotect(content, unix.PROT_READ))
}

// mapped returns how many bytes of files this process has mapped.
func mapped(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	sum := 0
	for _, of := range []string{"RssFile:", "RssShmem:"} { // the files of a tmpfs count as the latter
		_, after, found := bytes.Cut(status, []byte(of))
		require.True(t, found)
		kibibytes, err := strconv.Atoi(string(bytes.Fields(after)[0]))
		require.NoError(t, err)
		sum += kibibytes << 10
	}
	return sum
}
