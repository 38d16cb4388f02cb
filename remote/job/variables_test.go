package job

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// recordIn returns a record whose directory is there and empty.
func recordIn(t testing.TB) *record {
	t.Helper()
	return newRecord(Spec{ID: "1"}, t.TempDir())
}

func TestFileVariablesAreFilesAndTheirValueIsThePath(t *testing.T) {
	j := recordIn(t)
	values, err := j.values([]Variable{
		{Key: "PLAIN", Value: "first"},
		{Key: "KUBECONFIG", Value: "line\r\n\x00no end", File: true},
		{Key: "BOTH", Value: "a file", File: true},
		{Key: "_x1", File: true},
		{Key: "BOTH", Value: "not a file"},
		{Key: "PLAIN", Value: "last"},
	})
	require.NoError(t, err)
	dir := filepath.Join(j.dir, "vars")
	require.Equal(t, map[string]string{
		"PLAIN": "last", "BOTH": "not a file", "KUBECONFIG": filepath.Join(dir, "KUBECONFIG"), "_x1": filepath.Join(dir, "_x1"),
	}, values)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 2)
	data, err := os.ReadFile(values["KUBECONFIG"])
	require.NoError(t, err)
	require.Equal(t, "line\r\n\x00no end", string(data))
	for path, mode := range map[string]os.FileMode{dir: os.ModeDir | 0o700, values["_x1"]: 0o600} {
		fi, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, mode, fi.Mode())
	}
}

func TestKeyOfAFileVariableReachesNoOtherPath(t *testing.T) {
	for _, key := range []string{"../stdout", "/etc/x", "a/b", "..", ".", "", strings.Repeat("x", 256)} {
		j := recordIn(t)
		_, err := j.values([]Variable{{Key: key, Value: "geheim", File: true}})
		require.ErrorContains(t, err, "write file variable")
		require.NotContains(t, err.Error(), "geheim")
		entries, err := os.ReadDir(j.varsDir())
		require.NoError(t, err)
		require.Empty(t, entries)
	}
}

func TestFileVariablesGoWithTheEndOfTheJob(t *testing.T) {
	s := newStore(t, Config{})
	spec := script(t, "1", `cat ../vars/BAR; stat -c ' %a' ../vars/BAR; env`)
	spec.Variables = []Variable{{Key: "BAR", Value: "file content", File: true}, {Key: "FOO", Value: "of no environment"}}
	stat, _ := run(t, s, spec)
	require.Equal(t, Succeeded, stat.State, stat.Message)
	out := read(t, follow(t, s, "1"), Stdout, 0)
	require.True(t, strings.HasPrefix(out, "file content 600\n"), out)
	require.NotContains(t, out, "of no environment")
	require.NotContains(t, out, "BAR=")
	require.NoDirExists(t, filepath.Join(s.dir, dirs(t, s)[0], "vars"))
}

func TestVariablesThatCannotBeWrittenFailTheJob(t *testing.T) {
	s := newStore(t, Config{Dir: smallDisk(t)})
	spec := script(t, "1", "echo not run")
	spec.Variables = []Variable{{Key: "BIG", Value: strings.Repeat("x", 1<<20), File: true}}
	stat, _ := run(t, s, spec)
	require.Equal(t, Failed, stat.State)
	require.Contains(t, stat.Message, `write file variable "BIG"`)
	require.Contains(t, stat.Message, "no space left on device")
	require.Empty(t, read(t, follow(t, s, "1"), Stdout, 0))
}

func TestMaskedVariablesAreInNoLogAndNoMessage(t *testing.T) {
	s := newStore(t, Config{})
	spec := yaml(t, "1", `
- name: a
  script: |
    echo the password is pass; cat file
    printf glpat-abc; printf def123456
    printf 'status 7 half-of-' ; printf secret >&2
- name: b
  exec: {command: [./glpat-abcdef123456]}
`)
	spec.WorkDir, spec.Merged = t.TempDir(), true
	require.NoError(t, os.WriteFile(filepath.Join(spec.WorkDir, "file"), []byte("first line!\nsecond line!\n"), 0o600))
	spec.Variables = []Variable{
		{Key: "TOKEN", Value: "glpat-abcdef123456", Masked: true},
		{Key: "LINES", Value: "first line!\nsecond line!", Masked: true, File: true},
		{Key: "SHORT", Value: "pw", Masked: true},
		{Key: "HALVES", Value: "half-of-secret", Masked: true},
		{Key: "CODE", Value: "status 7", Masked: true},
		{Key: "EXIT", Value: "exit status 127", Masked: true},
		{Key: "EMPTY", Masked: true},
		{Key: "PLAIN", Value: "the password"},
	}
	stat, result := run(t, s, spec)
	require.Equal(t, Failed, stat.State)
	require.Equal(t, 127, stat.ExitCode)
	require.Contains(t, stat.Message, "[MASKED]")
	require.True(t, strings.HasSuffix(stat.Message, ": exit status 127"), stat.Message)
	require.Equal(t, stat.Message, result.Message)
	require.Equal(t, stat.Message, result.Steps[1].Message)
	f := follow(t, s, "1")
	last, err := f.Event(t.Context(), 3)
	require.NoError(t, err)
	require.Equal(t, stat.Message, last.Message)
	require.NotContains(t, stat.Message, "glpat")

	require.Equal(t, "the password is pass\n[MASKED]\n[MASKED][MASKED] half-of-", read(t, f, Stdout, 0))
	require.Equal(t, "secret", read(t, f, Stderr, 0))
	merged := read(t, f, Merged, 0)
	require.True(t, strings.HasPrefix(merged, "Running step \"a\"\nVariable SHORT is not masked: "), merged)
	require.Equal(t, 1, strings.Count(merged, "SHORT"))
	require.NotContains(t, merged, "EMPTY")
	require.Contains(t, merged, "\nRunning step \"b\"\n")
}

func TestMoreSecretsThanCanBeMaskedFailTheJob(t *testing.T) {
	s := newStore(t, Config{})
	spec := script(t, "1", "echo not run")
	spec.Variables = []Variable{{Key: "BIG", Value: strings.Repeat("geheim", 1<<20), Masked: true}}
	stat, _ := run(t, s, spec)
	require.Equal(t, Failed, stat.State)
	require.Contains(t, stat.Message, "mask variable BIG: ")
	require.NotContains(t, stat.Message, "geheim")
	require.Empty(t, read(t, follow(t, s, "1"), Stdout, 0))
}
