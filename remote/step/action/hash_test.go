package action

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The files, and their order, are those of @actions/glob, by which GitHub's runner hashes files. It walks the paths
// before the first wildcards, in the order of the patterns, and the last pattern that matches a file decides. Here the
// files were read by their names, braces had a meaning, and no later pattern could take back an exclusion. Unlike
// there, only a pattern that begins with .git finds it: it differs from run to run.
func TestHashFilesReadsTheFilesOfItsPatternsInTheirOrder(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a/x", "a/y", "b/x", "b/y/z", "c", "{c,d}", "{", `a\b`, "a-", ".git/x"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600))
	}
	require.NoError(t, os.Symlink("b", filepath.Join(dir, "link")))
	for patterns, want := range map[string]string{
		"c, b/x, a/x":           "c b/x a/x",
		"b/**, a/*":             "b/x b/y/z a/x a/y",
		"b/y, b/*, a":           "b/x b/y/z a/x a/y",
		"b/x, **/x":             "a/x b/x",
		"a/*, !a/y, a/**/y":     "a/x a/y",
		"a/**, !**/x":           "a/y",
		"!a/y, a":               "a/x a/y",
		"{c,d}, c":              "{c,d} c",
		"{*, !{c*}":             "{",
		`a\\b`:                  `a\b`,
		"a-, a/x":               "a- a/x",
		"none, none/**, link/*": "",
		"link, b/x":             "b/x",
		".git/*, **/x":          ".git/x a/x b/x", // that of GitHub's runner would read it by ** too
		"., !a, !b/**":          "a- a\\b c { {c,d}",
	} {
		sum := sha256.New()
		for _, name := range strings.Fields(want) {
			own := sha256.Sum256([]byte(name))
			sum.Write(own[:])
		}
		if want != "" {
			want = hex.EncodeToString(sum.Sum(nil))
		}
		for _, given := range [][]string{strings.Split(patterns, ", "), {strings.ReplaceAll(patterns, ", ", "\n")}} {
			got, err := hashFiles(os.OpenFile, dir, given, func() bool { return false })
			require.NoError(t, err, patterns)
			require.Equal(t, want, got, patterns)
		}
	}
}

// Symptom: a pattern with 40 pairs of braces took longer than anybody can wait, and nothing stopped it. Nothing stopped
// the reading of a sparse file of a terabyte either.
func TestHashFilesTakesNoLongerThanItsJob(t *testing.T) {
	dir, name := t.TempDir(), strings.Repeat("a", 60)
	file := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	got, err := hashFiles(os.OpenFile, dir, []string{strings.Repeat("{a,a}", 40) + "b"}, func() bool { return false })
	require.NoError(t, err)
	require.Empty(t, got)

	require.NoError(t, os.Truncate(file, 1<<40))
	_, err = hashFiles(os.OpenFile, dir, []string{strings.Repeat("x\n", maxEntries+1)}, func() bool { return false })
	require.EqualError(t, err, `hashFiles: the pattern "x" is not one of at most 10000 of files in the work directory`)
	asked := 0
	_, err = hashFiles(os.OpenFile, dir, []string{name}, func() bool { asked++; return asked > 3 })
	require.ErrorContains(t, err, "hashFiles: the job was stopped")
}
