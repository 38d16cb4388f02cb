package fetch

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
)

func TestTagBranchAndCommitAreFetched(t *testing.T) {
	h := newGitHost(t)
	commit := h.echo("c/echo")
	s := newStore(t)
	for rev, ref := range map[string]string{
		"v1": "refs/tags/v1", "main": "refs/heads/main", commit: "", commit[:8]: "", strings.ToUpper(commit): "",
		"refs/heads/main": "refs/heads/main", "HEAD": "",
	} {
		c := get(t, s, h.URL+"/c/echo@"+rev)
		require.Equal(t, stepText, read(t, c, "steps/step.yml"), rev)
		require.Equal(t, filepath.Join(c.Root, "steps"), c.Dir)
		require.Equal(t, commit, c.Commit, rev)
		require.Equal(t, rev, c.Version)
		if rev != "HEAD" {
			require.Equal(t, ref, c.ResolvedRef, rev)
		}
		require.Len(t, c.GitTree, 40)
		require.Len(t, c.Tree, len("sha256:")+64)
		require.Equal(t, h.URL+"/c/echo", c.Location)
	}
	require.Equal(t, 1, h.Fetches(), "all of them are one commit")
	require.Len(t, components(t, s), 1)
}

func TestAnnotatedTagIsItsCommit(t *testing.T) {
	for name, old := range map[string]bool{"newest protocol": false, "oldest protocol": true} {
		t.Run(name, func(t *testing.T) {
			h := newGitHost(t)
			h.Old = old
			r := h.repository("c/echo")
			commit := r.Commit("main", fetchtest.Texts(map[string]string{"steps/step.yml": stepText}))
			r.Git("tag", "-a", "-m", "x", "v1", commit)
			r.Commit("main", fetchtest.Texts(map[string]string{"a": "later"}))
			c := get(t, newStore(t), h.URL+"/c/echo@v1")
			require.Equal(t, commit, c.Commit)
			require.Equal(t, "refs/tags/v1", c.ResolvedRef)
		})
	}
}

//stepmux:faults fetch | An older commit cannot be fetched; symbolic links become text files
//stepmux:with remote/step/fetch.TestFilesAreTheSameAsInTheRepository
func TestOlderCommitIsFetchedFromServersOfAllAges(t *testing.T) {
	for name, old := range map[string]bool{"newest protocol": false, "oldest protocol": true} {
		t.Run(name, func(t *testing.T) {
			h := newGitHost(t)
			h.Old = old
			r := h.repository("c/echo")
			first := r.Commit("main", fetchtest.Texts(map[string]string{"a": "first"}))
			for _, text := range []string{"second", "third"} {
				r.Commit("main", fetchtest.Texts(map[string]string{"a": text}))
			}
			s := newStore(t)
			require.Equal(t, "first", read(t, get(t, s, h.URL+"/c/echo@"+first), "a"))
			require.Equal(t, "first", read(t, get(t, s, h.URL+"/c/echo@"+first[:9]), "a"))
			require.Contains(t, refused(t, s, h.URL+"/c/echo@"+strings.Repeat("0", 39)+"1"), "the repository has no commit")
			require.Contains(t, refused(t, s, h.URL+"/c/echo@"+strings.Repeat("0", 9)), "no commit 000000000")
		})
	}
}

// Symptom: with the oldest protocol, "the repository has no commit". The newer commit had come without its history.
func TestBranchMayMoveOnWhileItIsFetched(t *testing.T) {
	for _, old := range []bool{false, true} {
		h := newGitHost(t)
		h.Old = old
		r := h.repository("c/echo")
		first := r.Commit("main", fetchtest.Texts(map[string]string{"a": "first"}))
		questions := 0
		h.Before = func(_ http.ResponseWriter, req *http.Request) bool {
			if req.Method == http.MethodGet {
				if questions++; questions == 3 { // the first two found the repository and the commit
					r.Commit("main", fetchtest.Texts(map[string]string{"a": "second"}))
				}
			}
			return false
		}
		require.Equal(t, first, get(t, newStore(t), h.URL+"/c/echo@main").Commit)
		require.GreaterOrEqual(t, questions, 3)
	}
}

//stepmux:faults fetch | A cached branch is never fetched again
func TestBranchIsAskedForAgainAndCommitIsNot(t *testing.T) {
	h := newGitHost(t)
	r := h.repository("c/echo")
	first := r.Commit("main", fetchtest.Texts(map[string]string{"a": "first"}))
	s := newStore(t)
	require.Equal(t, "first", read(t, get(t, s, h.URL+"/c/echo@main"), "a"))
	r.Commit("main", fetchtest.Texts(map[string]string{"a": "second"}))
	require.Equal(t, "second", read(t, get(t, s, h.URL+"/c/echo@main"), "a"))
	require.Len(t, components(t, s), 2)

	h.Close() // a commit needs no server
	c := get(t, s, h.URL+"/c/echo@"+first)
	require.Equal(t, "first", read(t, c, "a"))
	require.True(t, c.Cached)
	require.Contains(t, refused(t, s, h.URL+"/c/echo@main"), "connection refused")
}

func TestTagComesBeforeBranchOfTheSameName(t *testing.T) {
	h := newGitHost(t)
	r := h.repository("c/echo")
	commit := r.Commit("v1", fetchtest.Texts(map[string]string{"a": "tagged"}))
	r.Git("tag", "v1", commit)
	r.Commit("v1", fetchtest.Texts(map[string]string{"a": "branch"}))
	c := get(t, newStore(t), h.URL+"/c/echo@v1")
	require.Equal(t, "tagged", read(t, c, "a"))
	require.Equal(t, "refs/tags/v1", c.ResolvedRef)
}

func TestFilesAreTheSameAsInTheRepository(t *testing.T) {
	h := newGitHost(t)
	commit := h.repository("c/all").Commit("main", fetchtest.Files{
		".gitattributes":   {Content: "* eol=crlf\nv.txt export-subst\ni.txt export-ignore filter=evil\n"},
		"v.txt":            {Content: "$Format:%H$\n"},
		"i.txt":            {Content: "ignored\n"},
		"d/run.sh":         {Content: "#!/bin/sh\n", Executable: true},
		"d/link":           {Symlink: "../v.txt"},
		"dangling":         {Symlink: "nowhere"},
		"sub":              {Submodule: strings.Repeat("1", 40)},
		"large":            {Content: "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"},
		"ümläut \" ' file": {Content: "odd"},
		"empty":            {},
	})
	c := get(t, newStore(t), h.URL+"/c/all@"+commit)
	require.Equal(t, "$Format:%H$\n", read(t, c, "v.txt"))
	require.Equal(t, "ignored\n", read(t, c, "i.txt"))
	require.Equal(t, "$Format:%H$\n", read(t, c, "d/link"))
	require.Contains(t, read(t, c, "large"), "git-lfs")
	require.Equal(t, "odd", read(t, c, "ümläut \" ' file"))
	require.Empty(t, read(t, c, "empty"))
	for name, mode := range map[string]os.FileMode{
		"v.txt": 0o444, "d/run.sh": 0o555, "d": 0o555 | os.ModeDir, "sub": 0o555 | os.ModeDir, ".": 0o555 | os.ModeDir,
	} {
		info, err := os.Stat(filepath.Join(c.Root, name))
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode(), name)
	}
	target, err := os.Readlink(filepath.Join(c.Root, "dangling"))
	require.NoError(t, err)
	require.Equal(t, "nowhere", target)
	inside, err := os.ReadDir(filepath.Join(c.Root, "sub"))
	require.NoError(t, err)
	require.Empty(t, inside)
}

func TestRepositoryOfTheNewerObjectFormatIsFetched(t *testing.T) {
	h := newGitHost(t)
	commit := h.repository("c/echo", "--object-format=sha256").Commit("main", fetchtest.Texts(map[string]string{"a": "x"}))
	require.Len(t, commit, 64)
	s := newStore(t)
	require.Equal(t, "x", read(t, get(t, s, h.URL+"/c/echo@"+commit), "a"))
	require.Equal(t, "x", read(t, get(t, s, h.URL+"/c/echo@main"), "a"))
}

func TestStepOfARepositoryIsNotFoundOutsideOfIt(t *testing.T) {
	h := newGitHost(t)
	h.echo("c/echo")
	s := newStore(t)
	for _, path := range []string{"%2e%2e/%2e%2e/x", "a%2f..%2f../x", ".%2e", "a%00", "a%0a", "a%ff"} {
		require.Contains(t, refused(t, s, h.URL+"/c/echo/"+path+"@v1"), "its path has .. or bytes that are not text", path)
	}
}

// Symptom: the provenance of a job named the commit in the cache's index, which any build of the same user could
// change.
//
//stepmux:faults fetch | The provenance names a commit that was not verified: the cache's index decides which files are
//stepmux:more those of a commit
func TestFilesAreThoseOfTheirCommit(t *testing.T) {
	h := newGitHost(t)
	r := h.repository("c/echo")
	good := r.Commit("main", fetchtest.Files{
		"a": {Content: "good"}, "d/x.sh": {Content: "x", Executable: true}, "d.x": {Content: "1"}, "d-x/y": {Content: "2"},
		"l": {Symlink: "a"}, "sub": {Submodule: strings.Repeat("1", 40)},
	})
	bad := r.Commit("other", fetchtest.Texts(map[string]string{"a": "bad"}))
	s := newStore(t)
	get(t, s, h.URL+"/c/echo@"+good)
	c := get(t, s, h.URL+"/c/echo@"+bad)
	location := c.Location
	index := func(commit string) string { return s.cache.path(indexDir, keyOf(kindGit, location, commit)) }
	entryOf := func(commit string) (e entry) {
		data, err := os.ReadFile(index(commit))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(data, &e))
		return e
	}
	right, forged := entryOf(good), entryOf(good)
	forged.Source.Tree = entryOf(bad).Source.Tree
	whole := entryOf(bad)
	unproved := right
	unproved.Git = nil
	for name, e := range map[string]entry{
		"other files": forged, "another commit": whole, "files of another tree, said so": {
			Source: Source{
				Kind: kindGit, Location: location, Commit: good, GitTree: whole.Source.GitTree, Tree: whole.Source.Tree,
			},
			Git: whole.Git,
		}, "no proof, as of an earlier version": unproved,
	} {
		t.Run(name, func(t *testing.T) {
			data, err := json.Marshal(e)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(index(good), data, 0o600))
			c := get(t, s, h.URL+"/c/echo@"+good)
			require.Equal(t, "good", read(t, c, "a"))
			require.Equal(t, good, c.Commit)
			require.False(t, c.Cached, "it was fetched anew")
			require.Equal(t, right, entryOf(good))
			require.True(t, get(t, s, h.URL+"/c/echo@"+good).Cached)
		})
	}
}
