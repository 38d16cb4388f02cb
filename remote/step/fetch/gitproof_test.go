package fetch

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
)

// again returns a store with the cache of s, as another process has it.
func again(t testing.TB, s *Store, offline bool) *Store {
	t.Helper()
	next, err := New(Config{Dir: s.cfg.Dir, Offline: offline})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, next.Close()) })
	return next
}

// Symptom: the names of commits were computed with the modes that git writes today, and without empty directories.
//
//stepmux:faults fetch | A commit with modes of old versions of git, or with empty directories, is refused, and its
//stepmux:more component stays
//stepmux:with remote/step/fetch.TestNothingOfARefusedCommitStaysInTheCache
//stepmux:with remote/step/fetch.TestProofCannotChangeTheFilesOfACommit
func TestCommitsThatGitNoLongerMakesAreFetched(t *testing.T) {
	for _, format := range []string{"sha1", "sha256"} {
		h := newGitHost(t)
		r := h.repository("c/old", "--object-format="+format)
		blob := r.Input(stepText, "hash-object", "-w", "--stdin")
		target := r.Input("d/step.yml", "hash-object", "-w", "--stdin")
		empty := rawTree(t, r)
		nested := rawTree(t, r, [2]string{"40000 e", empty})
		deep := rawTree(t, r, [2]string{"100664 step.yml", blob}, [2]string{"40000 z", empty})
		for name, tc := range map[string]struct {
			entries [][2]string
			files   []string
		}{
			"modes of the group": {
				[][2]string{{"100664 a", blob}, {"100775 b", blob}, {"40000 d", deep}}, []string{"a", "b", "d/step.yml"},
			},
			"modes of a directory and of a link": {
				[][2]string{{"40755 d", deep}, {"120777 l", target}}, []string{"d/step.yml", "l"},
			},
			"empty directories": {
				[][2]string{
					{"100644 a.x", blob},
					{"40000 a", empty},
					{"40000 b", nested},
					{"40000 d", deep},
					{"160000 s", strings.Repeat("1", len(blob))},
				},
				[]string{"a.x", "d/step.yml", "s"},
			},
			"nothing but empty directories": {[][2]string{{"40000 b", nested}}, nil},
			"nothing":                       {},
		} {
			t.Run(format+" "+name, func(t *testing.T) {
				commit := r.Git("commit-tree", "-m", "x", rawTree(t, r, tc.entries...))
				r.Git("update-ref", "refs/heads/main", commit)
				s := newStore(t)
				ref := h.URL + "/c/old@" + commit
				c := get(t, s, ref)
				require.Equal(t, commit, c.Commit)
				require.False(t, c.Cached)
				require.Equal(t, tc.files, paths(t, c))
				if len(tc.files) > 1 {
					require.Equal(t, stepText, read(t, c, tc.files[1]))
				}
				require.True(t, get(t, s, ref).Cached)
				require.True(t, get(t, again(t, s, true), ref).Cached, "its proof is in the cache")
			})
		}
	}
}

// Symptom: a step in a repository whose history has a commit with a wrong time zone, such as psf/requests, was refused,
// though every git clones it.
func TestCommitsWithMistakesOfOldProgramsAreFetched(t *testing.T) {
	h := newGitHost(t)
	r := h.repository("c/old")
	blob := r.Input(stepText, "hash-object", "-w", "--stdin")
	dir := rawTree(t, r, [2]string{"100644 step.yml", blob})
	tree := rawTree(t, r, [2]string{"0100644 a", blob}, [2]string{"040000 d", dir})
	commit := func(more ...string) string {
		t.Helper()
		return r.Input("tree "+tree+"\n"+strings.Join(more, "")+
			"author a 1313584730 +051800\ncommitter A <a@example.com> 01313584730 +0000\n\nx\n",
			"hash-object", "-t", "commit", "--literally", "-w", "--stdin")
	}
	first := commit()
	middle := commit("parent " + first + "\n")
	r.Git("update-ref", "refs/heads/main", commit("parent "+middle+"\n"))
	for _, rev := range []string{"main", middle, middle[:10]} {
		c := get(t, newStore(t), h.URL+"/c/old@"+rev)
		require.Equal(t, []string{"a", "d/step.yml"}, paths(t, c))
	}
}

// paths returns the files of a component, its links and its empty directories.
func paths(t testing.TB, c *Component) (all []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(c.Root, func(at string, d os.DirEntry, err error) error {
		if err != nil || at == c.Root {
			return err
		}
		if d.IsDir() {
			if entries, err := os.ReadDir(at); err != nil || len(entries) > 0 {
				return err
			}
		}
		all = append(all, strings.TrimPrefix(at, c.Root+"/"))
		return nil
	}))
	return all
}

func TestNothingOfARefusedCommitStaysInTheCache(t *testing.T) {
	h := newGitHost(t)
	r := h.repository("c/old")
	blob := r.Input(stepText, "hash-object", "-w", "--stdin")
	commit := r.Git("commit-tree", "-m", "x", rawTree(t, r, [2]string{"100664 a", blob}, [2]string{"100664 b", blob}))
	r.Git("update-ref", "refs/heads/main", commit)
	s := newStore(t)
	s.limits.proof = int64(len("a100664b"))
	require.Contains(t, refused(t, s, h.URL+"/c/old@"+commit), "their paths have more than 8 bytes")
	require.Empty(t, components(t, s))
	entries, err := os.ReadDir(s.cache.path(indexDir))
	require.NoError(t, err)
	require.Empty(t, entries)
	s.limits.proof = int64(len("a100664b100664"))
	get(t, s, h.URL+"/c/old@"+commit)
}

// indexOf returns the file of the entry of a commit or a tag object.
func indexOf(s *Store, location, name string) string {
	return s.cache.path(indexDir, keyOf(kindGit, location, name))
}

// forge changes the entry of a commit or a tag object.
func forge(t testing.TB, s *Store, location, name string, change func(*entry)) {
	t.Helper()
	file := indexOf(s, location, name)
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	var e entry
	require.NoError(t, json.Unmarshal(data, &e))
	change(&e)
	data, err = json.Marshal(e)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, data, 0o600))
}

// A proof says modes and empty directories. By neither may it make other files out of a commit.
func TestProofCannotChangeTheFilesOfACommit(t *testing.T) {
	h := newGitHost(t)
	r := h.repository("c/echo")
	run := r.Commit("run", fetchtest.Files{"a": {Content: "x", Executable: true}})
	plain := r.Commit("plain", fetchtest.Texts(map[string]string{"a": "x"}))
	empty := r.Git("commit-tree", "-m", "x", rawTree(t, r, [2]string{"40000 d", rawTree(t, r)}))
	r.Git("update-ref", "refs/heads/empty", empty)
	s := newStore(t)
	at := h.URL + "/c/echo"
	other := get(t, s, at+"@"+plain)
	get(t, s, at+"@"+run)
	get(t, s, at+"@"+empty)
	for name, forged := range map[string]struct {
		commit string
		change func(*entry)
	}{
		"a file that was executable": {run, func(e *entry) {
			e.Source.Tree, e.Git.Modes = strings.TrimPrefix(other.Tree, digestPrefix), map[string]string{"a": "100755"}
		}},
		"a mode that is none":    {run, func(e *entry) { e.Git.Modes = map[string]string{"a": "x"} }},
		"a path out of the tree": {empty, func(e *entry) { e.Git.Empty = []string{"../d"} }},
		"a path that is endless": {empty, func(e *entry) {
			e.Git.Empty = []string{strings.Repeat("d/", 5_000_000) + "d"}
		}},
		"a path that is a file":         {run, func(e *entry) { e.Git.Empty = []string{"a/b"} }},
		"a directory that is not there": {run, func(e *entry) { e.Git.Empty = []string{"b"} }},
		"a directory less":              {empty, func(e *entry) { e.Git.Empty = nil }},
		"a tag object":                  {run, func(e *entry) { e.Git.Tags = [][]byte{[]byte("object " + plain)} }},
	} {
		t.Run(name, func(t *testing.T) {
			forge(t, s, at, forged.commit, forged.change)
			next := again(t, s, false)
			c := get(t, next, at+"@"+forged.commit)
			require.False(t, c.Cached, "it was fetched anew")
			require.True(t, get(t, next, at+"@"+forged.commit).Cached)
		})
	}
}

// Symptom: the cache never had the component of a tag object: each job fetched it again, and an offline job failed.
//
//stepmux:faults fetch | A pin to a tag object is never in the cache
//stepmux:with remote/step/fetch.TestTagObjectIsProvedToLeadToItsCommit
func TestTagObjectIsFetchedOnce(t *testing.T) {
	for _, format := range []string{"sha1", "sha256"} {
		for name, old := range map[string]bool{"newest protocol": false, "oldest protocol": true} {
			t.Run(format+" "+name, func(t *testing.T) {
				h := newGitHost(t)
				h.Old = old
				r := h.repository("c/echo", "--object-format="+format)
				commit := r.Commit("main", fetchtest.Texts(map[string]string{"steps/step.yml": stepText}))
				r.Git("tag", "-a", "-m", "x", "v1", commit)
				r.Git("tag", "-a", "-m", "of a tag", "v2", "v1")
				at := h.URL + "/c/echo"
				for _, tag := range []string{r.Git("rev-parse", "v1"), r.Git("rev-parse", "v2")} {
					require.NotEqual(t, commit, tag)
					s := newStore(t)
					c := get(t, s, at+"@"+tag)
					require.Equal(t, commit, c.Commit)
					require.Equal(t, tag, c.Version)
					require.False(t, c.Cached)
					fetches := h.Fetches()
					require.True(t, get(t, s, at+"@"+tag).Cached)
					offline := again(t, s, true)
					for _, rev := range []string{tag, commit} {
						c := get(t, offline, at+"@"+rev)
						require.True(t, c.Cached)
						require.Equal(t, commit, c.Commit)
					}
					same, err := exactly(t, offline, at+"@"+tag, c.Source)
					require.NoError(t, err)
					require.Equal(t, c.Source, same.Source)
					require.Equal(t, fetches, h.Fetches())
					all, err := s.List()
					require.NoError(t, err)
					require.Len(t, all, 1)
					require.Len(t, all[0].Sources, 1, "a tag object and its commit are one source")
				}
			})
		}
	}
}

func TestTagObjectIsProvedToLeadToItsCommit(t *testing.T) {
	h := newGitHost(t)
	r := h.repository("c/echo")
	at := h.URL + "/c/echo"
	s := newStore(t)
	tags := map[string]string{}
	for _, name := range []string{"one", "two"} {
		r.Git("tag", "-a", "-m", "x", name, r.Commit(name, fetchtest.Texts(map[string]string{"a": name})))
		r.Git("tag", "-a", "-m", "x", "of-"+name, name)
		tags[name] = r.Git("rev-parse", "of-"+name)
		get(t, s, at+"@"+tags[name])
	}
	var two entry
	forge(t, s, at, tags["two"], func(e *entry) { two = *e })
	for name, change := range map[string]func(*entry){
		"another component":     func(e *entry) { *e = two },
		"another commit":        func(e *entry) { e.Source, e.Git.Commit = two.Source, two.Git.Commit },
		"a tag object less":     func(e *entry) { e.Git.Tags = e.Git.Tags[:1] },
		"a tag object twice":    func(e *entry) { e.Git.Tags = append(e.Git.Tags[:1:1], e.Git.Tags...) },
		"no tag object":         func(e *entry) { e.Git.Tags = nil },
		"an invented object":    func(e *entry) { e.Git.Tags[0] = []byte("object " + two.Source.Commit + "\ntype commit\n") },
		"no proof":              func(e *entry) { e.Git = nil },
		"another second object": func(e *entry) { e.Git.Tags[1] = []byte("tag") },
	} {
		t.Run(name, func(t *testing.T) {
			forge(t, s, at, tags["one"], change)
			require.Equal(t, "one", read(t, get(t, s, at+"@"+tags["one"]), "a"), "in a process that has proved the true ones")
			forge(t, s, at, tags["one"], change)
			next := again(t, s, false)
			c := get(t, next, at+"@"+tags["one"])
			require.Equal(t, "one", read(t, c, "a"))
			require.False(t, c.Cached, "it was fetched anew")
			require.True(t, get(t, next, at+"@"+tags["one"]).Cached)
		})
	}
}

func TestTooManyTagObjectsAreRefused(t *testing.T) {
	h := newGitHost(t)
	r := h.repository("c/echo")
	name := r.Commit("main", fetchtest.Texts(map[string]string{"a": "x"}))
	s := newStore(t)
	for i := range maxTags + 1 {
		r.Git("tag", "-f", "-a", "-m", "x", "v1", name)
		name = r.Git("rev-parse", "v1")
		if i == maxTags-1 {
			get(t, s, h.URL+"/c/echo@"+name)
		}
	}
	require.Contains(t, refused(t, s, h.URL+"/c/echo@"+name), "more than 10 tag objects lead to the commit ")
}
