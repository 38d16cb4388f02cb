package gitlabci

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// globsFile has rows of a pattern, a path and Ruby's answer.
const globsFile = "testdata/globs.tsv"

// fnmatch returns the table that Ruby makes of rows of a pattern and a path.
func fnmatch(t testing.TB, rows []string) (table string) {
	t.Helper()
	sshtest.RequirePart(t, "ruby", "/usr/bin/ruby")
	cmd := exec.CommandContext(t.Context(), "/usr/bin/ruby", "testdata/fnmatch.rb")
	cmd.Stdin, cmd.Stderr = strings.NewReader(strings.Join(rows, "\n")+"\n"), os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	_, table, _ = strings.Cut(string(out), "\n") // behind the version
	return table
}

// requireGlobs compares our answers with those of a table.
func requireGlobs(t *testing.T, table string) {
	t.Helper()
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		require.Len(t, cells, 3, line)
		pattern, err := globPattern(cells[0])
		require.NoError(t, err, cells[0])
		require.Equal(t, cells[2], strconv.FormatBool(pattern.MatchString(cells[1])), "%q matches %q", cells[0], cells[1])
	}
}

func TestPatternsOfPathsAreThoseOfRuby(t *testing.T) {
	table, err := os.ReadFile(globsFile)
	require.NoError(t, err)
	require.Greater(t, strings.Count(string(table), "\n"), 60)
	requireGlobs(t, string(table))
}

// The table is Ruby's. To write it: add lines with a pattern and a path, and go test -update.
func TestTheTableOfPatternsIsThatOfRuby(t *testing.T) {
	old, err := os.ReadFile(globsFile)
	require.NoError(t, err)
	var rows []string
	for line := range strings.Lines(string(old)) {
		pattern, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		path, _, _ := strings.Cut(rest, "\t")
		rows = append(rows, pattern+"\t"+path)
	}
	table := fnmatch(t, rows)
	if *update {
		require.NoError(t, os.WriteFile(globsFile, []byte(table), 0o644))
	}
	require.Equal(t, table, string(old))
}

// Random patterns of the characters that make a difference match the paths that Ruby says.
func TestRandomPatternsMatchAsRubyMatches(t *testing.T) {
	patterns := []string{
		"a", "b", "ab", "/", "/", "*", "**", "**/", "?", "[ab]", "[!a]", "[^a]", "[a-c]", "[ -~]", "[!-z]", "[{a,b}]", "[{]",
		"[", "]", "{a,b}", "{a,b/c}", "{", "}", ",", `\`, ".", ".a", "é", "[]a]", `[a\]]`, "{a,{b,c}}", "{,a}", "[c-a]",
		"[!]", "[a/b]", "[-a]", "[a-]", "(", "+", "$", `\*`, `\{`,
	}
	paths := []string{
		"a", "b", "c", "ab", ".", ".a", "é", "/", "/", "]", "[", "*", "{", "}", ",", `\`, "-", "!", "a/b", "(",
	}
	plain := strings.NewReplacer("**/", "a/", "*", "b", "?", "c", "{", "", "}", "", "[", "", "]", "", ",", "")
	rnd := rand.New(rand.NewPCG(1, 2))
	join := func(pieces []string) (text string) {
		for range 1 + rnd.IntN(4) {
			text += pieces[rnd.IntN(len(pieces))]
		}
		return text
	}
	var rows []string
	for range 30_000 {
		pattern := join(patterns)
		path := join(paths)
		if near := plain.Replace(pattern); near != "" && rnd.IntN(3) == 0 {
			path = near
		}
		rows = append(rows, pattern+"\t"+path)
	}
	requireGlobs(t, fnmatch(t, rows))
}

func TestPatternsWithManyChoicesAreRefused(t *testing.T) {
	_, err := globPattern(strings.Repeat("{a,b}", 12))
	require.NoError(t, err)
	_, err = globPattern(strings.Repeat("{a,b}", 13))
	require.ErrorContains(t, err, "its { } make patterns of more than 64 KiB")
	_, err = globPattern(strings.Repeat("{a,b}", maxGlob/5))
	require.ErrorContains(t, err, "more than 64 KiB")
	_, err = globPattern(strings.Repeat("{a}", maxGlob))
	require.ErrorContains(t, err, "more than 4096 bytes")
}
