package standalone

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/standalone/answers"
	"github.com/stepmux/stepmux/remote/step/lang"
)

func TestALockHoldsForTheWorkflowsThatItNames(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, ".github/workflows"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, lockFile), []byte(text), 0o600))
	}
	commit := strings.Repeat("a1", 20)
	src := Source{Name: filepath.Join(dir, ".github/workflows/ci.yml"), WorkDir: dir}
	got, err := LockedCommits(src)
	require.NoError(t, err)
	require.Nil(t, got, "there is no lock")

	text := "version: 'v0.0.2'\nworkflows:\n    '.github/workflows/ci.yml':\n        - 'Swatinem/rust-cache@V2'\n" +
		"dependencies:\n    'Swatinem/rust-cache@V2':\n        ref: 'V2'\n        commit: 'sha1-" + commit +
		"'\n        owner_id: 1\n        repo_id: 2\n"
	write(text)
	want := map[string]string{"": "", "swatinem/rust-cache@V2": commit}
	got, err = LockedCommits(src)
	require.NoError(t, err)
	require.Equal(t, want, got)
	src.Answers = answers.Learn(answers.Questions{})
	got, err = LockedCommits(src)
	require.NoError(t, err)
	require.Equal(t, want, got)
	other := src
	other.Name = "other.yml"
	got, err = LockedCommits(other)
	require.NoError(t, err)
	require.Nil(t, got)
	other = src
	other.Repository = "o/r@v1"
	got, err = LockedCommits(other)
	require.NoError(t, err)
	require.Nil(t, got, "the lock is that of the project")
	src.Answers = &answers.Set{Files: map[string]answers.File{}} // of a submitter that is older than locks
	got, err = LockedCommits(src)
	require.NoError(t, err)
	require.Nil(t, got)
	src.Answers = nil

	for text, want := range map[string]string{
		"version: 'v1.0.0'\n":               `its version is "v1.0.0"; this program knows v0`,
		"a: [":                              "it is not valid",
		strings.Repeat("#", lang.MaxText+1): "it has more than 1 MiB",
		strings.Replace(text, "sha1-a1", "sha1-x1", 1): `the commit of "Swatinem/rust-cache@V2" is "sha1-x1a1`,
		strings.Replace(text, "sha1-", "md5-", 1):      `it must begin with sha1- or sha256-`,
	} {
		write(text)
		_, err := LockedCommits(src)
		require.ErrorContains(t, err, ".github/workflows/actions.lock: ")
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, os.Remove(filepath.Join(dir, lockFile)))
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(dir, lockFile)))
	_, err = LockedCommits(src)
	require.Error(t, err, "it leads out of the project")
}
