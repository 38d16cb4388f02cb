package action

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the table of patterns by @actions/glob, which npm installs")

// globsFile has lines of a pattern and the files that it selects, or null if it is refused.
const globsFile = "testdata/globs.jsonl"

// globTree makes the files of the table below dir.
func globTree(t *testing.T, dir string) {
	t.Helper()
	for _, name := range []string{
		"a/x", "a/y", "a/b/x", "a/b/c/z", ".hid/x/g", ".hid/f", ".dot", "d/.e", "sp ace/q", "c", "ab", "abc", "a[b]",
		"x{1,2}", "{", "]", "[", "x[{", "!n", "#h", `w\q`, `\{`, "A", "é", "+(a)", "a-", "-",
	} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600))
	}
	require.NoError(t, os.Symlink("a", filepath.Join(dir, "la")))
	require.NoError(t, os.Symlink("c", filepath.Join(dir, "lc")))
}

// The table is that of @actions/glob 0.4.0. `make prove WHAT=tables` writes it.
//
//stepmux:faults users | The files of a key of a cache differ from those that GitHub selects
func TestPatternsOfFilesAreThoseOfGitHub(t *testing.T) {
	dir := t.TempDir()
	globTree(t, dir)
	if *update {
		packages := t.TempDir()
		install := exec.CommandContext(t.Context(), "npm", "install", "--silent", "--ignore-scripts", "--prefix", packages,
			"@actions/glob@0.4.0")
		out, err := install.CombinedOutput()
		require.NoError(t, err, "%s", out)
		table, err := filepath.Abs(globsFile)
		require.NoError(t, err)
		out, err = exec.CommandContext(t.Context(), "node", "testdata/globs.mjs", packages, dir, table).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	table, err := os.ReadFile(globsFile)
	require.NoError(t, err)
	for line := range bytes.Lines(table) {
		var row [2]json.RawMessage
		require.NoError(t, json.Unmarshal(line, &row))
		var pattern string
		var files []string
		require.NoError(t, json.Unmarshal(row[0], &pattern))
		require.NoError(t, json.Unmarshal(row[1], &files))
		got, err := hashFiles(os.OpenFile, dir, []string{pattern}, func() bool { return false })
		require.Equal(t, files == nil, err != nil, "%s%v", line, err)
		sum, want := sha256.New(), ""
		for _, name := range files {
			text, err := os.ReadFile(filepath.Join(dir, name))
			require.NoError(t, err)
			own := sha256.Sum256(text)
			sum.Write(own[:])
			want = hex.EncodeToString(sum.Sum(nil))
		}
		require.Equal(t, want, got, "%s", line)
	}
}
