package clone

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
)

// trial is a server with the repository p/main and a directory for clones of it.
type trial struct {
	t      *testing.T
	server *fetchtest.GitServer
	repo   *fetchtest.Repository
	root   string
	cfg    Config
	said   bytes.Buffer
	// before is called before each request. The server's goroutines begin when git, another process, connects: only an
	// atomic orders them after the test's writes.
	before atomic.Pointer[func(*http.Request)]
}

// newTrial serves a repository that needs a password.
func newTrial(t *testing.T) *trial {
	t.Helper()
	tr := &trial{t: t, root: t.TempDir()}
	tr.repo = fetchtest.NewRepository(t, filepath.Join(tr.root, "p", "main"))
	tr.server = fetchtest.ServeGit(t, tr.root)
	tr.server.Before = func(_ http.ResponseWriter, r *http.Request) bool {
		if before := tr.before.Load(); before != nil {
			(*before)(r)
		}
		return false
	}
	tr.server.User, tr.server.Password = "gitlab-ci-token", `pa"ss $word`
	tr.cfg = Config{
		URL: tr.server.URL + "/p/main", Dir: filepath.Join(t.TempDir(), "work"), User: "gitlab-ci-token",
		Password: tr.server.Password, Output: &tr.said,
		Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "GIT_CONFIG_NOSYSTEM=1", "GIT_DIR=/nowhere"},
	}
	return tr
}

// clone clones, which must succeed, and returns the commit.
func (tr *trial) clone(change ...func(*Config)) string {
	tr.t.Helper()
	commit, err := tr.try(change...)
	require.NoError(tr.t, err, "%s", &tr.said)
	return commit
}

func (tr *trial) try(change ...func(*Config)) (string, error) {
	cfg := tr.cfg
	for _, c := range change {
		c(&cfg)
	}
	return Clone(tr.t.Context(), cfg)
}

// has requires that a file of the clone has the text. "" means that the file is missing.
func (tr *trial) has(name, text string) {
	tr.t.Helper()
	data, err := os.ReadFile(filepath.Join(tr.cfg.Dir, name))
	if text == "" {
		require.ErrorIs(tr.t, err, os.ErrNotExist)
		return
	}
	require.NoError(tr.t, err)
	require.Equal(tr.t, text, string(data))
}

// put writes a file of the clone.
func (tr *trial) put(name, text string) {
	tr.t.Helper()
	path := filepath.Join(tr.cfg.Dir, name)
	require.NoError(tr.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(tr.t, os.WriteFile(path, []byte(text), 0o755))
}

func TestCommitsBranchesAndTagsAreCheckedOut(t *testing.T) {
	tr := newTrial(t)
	first := tr.repo.Commit("main", fetchtest.Texts(map[string]string{"a": "1", "old": "x"}))
	second := tr.repo.Commit("main", fetchtest.Texts(map[string]string{"a": "2"}))
	other := tr.repo.Commit("feature/x", fetchtest.Texts(map[string]string{"a": "3"}))
	tr.repo.Git("tag", "v1", first)

	require.Equal(t, second, tr.clone())
	tr.has("a", "2")
	tr.has("old", "")
	require.Equal(t, first, tr.clone(func(c *Config) { c.Revision, c.Depth = first, 1 }))
	tr.has("old", "x")
	require.Equal(t, other, tr.clone(func(c *Config) { c.Revision, c.Depth = "feature/x", 1 }))
	tr.has("a", "3")
	require.Equal(t, first, tr.clone(func(c *Config) { c.Revision = "v1" }))
	require.Equal(t, second, tr.clone(func(c *Config) { c.Revision = "refs/heads/main" }))
	tr.has("a", "2")
}

// The commit is the one that was asked for, whatever the references are. One that has gone at the server goes here.
func TestReferencesAreFetchedWithTheCommit(t *testing.T) {
	tr := newTrial(t)
	first := tr.repo.Commit("main", fetchtest.Texts(map[string]string{"a": "1"}))
	second := tr.repo.Commit("main", fetchtest.Texts(map[string]string{"a": "2"}))
	tr.repo.Commit("other", fetchtest.Texts(map[string]string{"a": "3"}))
	tr.repo.Git("tag", "v1", first)
	names := func() string {
		cmd := exec.Command("git", "for-each-ref", "--format=%(refname)")
		cmd.Dir = tr.cfg.Dir
		out, err := cmd.Output()
		require.NoError(t, err)
		return string(out)
	}
	with := func(c *Config) {
		c.Revision, c.Refspecs = first, []string{"+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"}
	}
	require.Equal(t, first, tr.clone(with))
	require.Equal(t, "refs/remotes/origin/main\nrefs/remotes/origin/other\nrefs/tags/v1\n", names())
	tr.repo.Git("branch", "-D", "other")
	require.Equal(t, second, tr.clone(with, func(c *Config) { c.Revision, c.Depth = second, 1 }))
	require.Equal(t, "refs/remotes/origin/main\nrefs/tags/v1\n", names())
	for _, wrong := range []string{"--upload-pack=x", "a b", "+refs/heads/x:config", "../x", "x:refs/../config", ""} {
		_, err := tr.try(func(c *Config) { c.Refspecs = []string{wrong} })
		require.ErrorContains(t, err, "the refspecs are not valid", "%s", wrong)
	}
}

// Git cannot keep both names: "cannot lock ref 'refs/remotes/origin/topic/x': 'refs/remotes/origin/topic' exists".
func TestBranchThatIsBelowAnEarlierBranchIsCheckedOut(t *testing.T) {
	tr := newTrial(t)
	tr.repo.Commit("topic", fetchtest.Texts(map[string]string{"a": "1"}))
	tr.clone(func(c *Config) { c.Revision = "topic" })
	tr.repo.Git("branch", "-D", "topic")
	second := tr.repo.Commit("topic/x", fetchtest.Texts(map[string]string{"a": "2"}))
	require.Equal(t, second, tr.clone(func(c *Config) { c.Revision = "topic/x" }))
	tr.has("a", "2")
}

// An index says which files are unchanged, and git believed that of an earlier build.
func TestIndexOfAnEarlierBuildDecidesNothing(t *testing.T) {
	tr := newTrial(t)
	tr.repo.Commit("main", fetchtest.Texts(map[string]string{"a": "own text", "same": "x", "old": "x"}))
	tr.clone()
	same := filepath.Join(tr.cfg.Dir, "same")
	at := time.Unix(1_000_000_000, 0)
	require.NoError(t, os.Chtimes(same, at, at))
	g := &git{cfg: &tr.cfg}
	require.NoError(t, g.run(t.Context(), "update-index", "--skip-worktree", "a"))
	tr.put("a", "of the build")
	tr.repo.Commit("main", fetchtest.Texts(map[string]string{"a": "own text", "same": "x", "new": "x"}))
	tr.clone()
	tr.has("a", "own text")
	tr.has("old", "")
	tr.has("new", "x")
	info, err := os.Stat(same)
	require.NoError(t, err)
	require.Equal(t, at, info.ModTime(), "an unchanged file is not written again")

	tr.put(".git/HEAD", "ref: refs/heads/none\n")
	tr.put("a", "of the build")
	tr.clone()
	tr.has("a", "own text")
}

func TestHistoryHasTheDepthThatIsAskedFor(t *testing.T) {
	tr := newTrial(t)
	for range 5 {
		tr.repo.Commit("main", fetchtest.Texts(map[string]string{"a": "1"}))
	}
	for _, c := range []struct {
		depth int
		want  string
	}{{2, "2"}, {0, "5"}, {3, "3"}} {
		tr.clone(func(cfg *Config) { cfg.Depth = c.depth })
		g := &git{cfg: &tr.cfg}
		count, err := g.output(t.Context(), "rev-list", "--count", "HEAD")
		require.NoError(t, err)
		require.Equal(t, c.want, count)
	}
}

//stepmux:faults engine | An earlier build's hooks, filters or configuration run in the next clone of the directory
func TestEarlierBuildCannotMakeTheGitOfACloneRunCode(t *testing.T) {
	tr := newTrial(t)
	tr.repo.Commit("main", fetchtest.Texts(map[string]string{
		"a": "1\n", ".gitignore": "ignored\n", ".gitattributes": "a filter=evil\n",
	}))
	tr.clone()
	evil := filepath.Join(t.TempDir(), "evil")
	for _, hook := range []string{"post-checkout", "reference-transaction", "post-index-change"} {
		tr.put(".git/hooks/"+hook, "#!/bin/sh\ntouch "+evil+"\n")
	}
	tr.put(".git/config", "[core]\n\tfsmonitor = touch "+evil+"\n\thooksPath = .git/hooks\n"+
		"[filter \"evil\"]\n\tsmudge = touch "+evil+"; cat\n"+
		"[remote \"origin\"]\n\turl = http://elsewhere.invalid/\n[include]\n\tpath = /nowhere\n")
	tr.put(".git/index.lock", "")
	tr.put("a", "changed")
	tr.put("new", "x")
	tr.put("ignored", "x")
	tr.put("sub/dir/new", "x")
	tr.clone(func(c *Config) { c.Clean = true })
	require.NoFileExists(t, evil)
	tr.has("a", "1\n")
	for _, name := range []string{"new", "ignored", "sub/dir/new"} {
		tr.has(name, "")
	}

	tr.put("new", "x")
	tr.clone()
	tr.has("new", "x")

	// git reads its configuration in another directory, if commondir names one.
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	require.NoError(t, os.CopyFS(elsewhere, os.DirFS(filepath.Join(tr.cfg.Dir, ".git"))))
	require.NoError(t, os.WriteFile(filepath.Join(elsewhere, "config"),
		[]byte("[filter \"evil\"]\n\tsmudge = touch "+evil+"; cat\n"), 0o600))
	tr.put(".git/commondir", elsewhere+"\n")
	tr.put("a", "changed")
	tr.clone()
	require.NoFileExists(t, evil)
	tr.has("a", "1\n")

	// Something else in the place of the repository goes.
	require.NoError(t, os.RemoveAll(filepath.Join(tr.cfg.Dir, ".git")))
	require.NoError(t, os.Symlink("/nowhere", filepath.Join(tr.cfg.Dir, ".git")))
	tr.clone()
	tr.has("a", "1\n")
}

// git believes that an object is what its name says, unless it arrives. So an earlier build had its own files checked
// out in place of the commit's.
//
//stepmux:faults engine | An earlier build's `git replace`, or objects under wrong names, change the files of the next
//stepmux:more clone of the directory
func TestEarlierBuildCannotReplaceTheFilesOfACommit(t *testing.T) {
	tr := newTrial(t)
	first := tr.repo.Commit("main", fetchtest.Texts(map[string]string{"a": "own text", "d/b": "own"}))
	evil := tr.repo.Commit("evil", fetchtest.Texts(map[string]string{"a": "of the build", "d/b": "evil"}))
	g := &git{cfg: &tr.cfg}
	run := func(args ...string) {
		t.Helper()
		require.NoError(t, g.run(t.Context(), args...))
	}
	id := func(revision string) string {
		t.Helper()
		return tr.repo.Git("rev-parse", revision)
	}
	object := func(name string) string { return filepath.Join(tr.cfg.Dir, ".git/objects", name[:2], name[2:]) }
	for name, harm := range map[string]func(){
		"replaced":        func() { run("replace", "-f", id(first+":a"), id(evil+":a")) },
		"packed replaced": func() { run("replace", "-f", id(first+":a"), id(evil+":a")); run("pack-refs", "--all") },
	} {
		t.Run(name, func(t *testing.T) {
			tr.clone(func(c *Config) { c.Revision = "evil" })
			harm()
			tr.clone(func(c *Config) { c.Revision = "main" })
			tr.has("a", "own text")
			text, err := g.output(t.Context(), "show", "HEAD:a")
			require.NoError(t, err)
			require.Equal(t, "own text", text, "also for the git of the job")
		})
	}
	for name, revisions := range map[string][2]string{
		"file":      {first + ":a", evil + ":a"},
		"directory": {first + ":d", evil + ":d"},
		"commit":    {first, evil},
		"top":       {first + "^{tree}", evil + "^{tree}"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, branch := range []string{"main", "evil"} {
				tr.clone(func(c *Config) { c.Revision = branch })
			}
			tr.unpack()
			data, err := os.ReadFile(object(id(revisions[1])))
			require.NoError(t, err)
			require.NoError(t, os.Remove(object(id(revisions[0]))))
			require.NoError(t, os.WriteFile(object(id(revisions[0])), data, 0o444))
			tr.clone(func(c *Config) { c.Revision = "main" })
			tr.has("a", "own text")
			tr.has("d/b", "own")
			require.Contains(t, tr.said.String(), "everything is fetched again: the earlier clone is damaged: the object ")
		})
	}
}

// unpack makes a file of each object of the clone.
func (tr *trial) unpack() {
	tr.t.Helper()
	packs, err := filepath.Glob(filepath.Join(tr.cfg.Dir, ".git/objects/pack/*.pack"))
	require.NoError(tr.t, err)
	for _, pack := range packs {
		data, err := os.ReadFile(pack)
		require.NoError(tr.t, err)
		require.NoError(tr.t, os.Remove(pack))
		_ = os.Remove(strings.TrimSuffix(pack, ".pack") + ".idx")
		cmd := exec.Command("git", "unpack-objects", "-q")
		cmd.Dir, cmd.Stdin = tr.cfg.Dir, bytes.NewReader(data)
		out, err := cmd.CombinedOutput()
		require.NoError(tr.t, err, "%s", out)
	}
}

// Symptom: an ordinary user's clone failed in a directory with a module cache of Go, whose directories are read-only.
func TestFilesOfAnEarlierBuildAreRemovedFromReadOnlyDirectories(t *testing.T) {
	tr := newTrial(t)
	files := fetchtest.Texts(map[string]string{"a": "1", "dir/b": "1", ".gitignore": "/.go\n*.o\n"})
	files["sub"] = fetchtest.File{Submodule: strings.Repeat("1", 40)}
	tr.repo.Commit("main", files)
	tr.clone()
	mod := filepath.Join(tr.cfg.Dir, ".go/pkg/mod")
	for _, name := range []string{".go/pkg/mod/x/f", "dir/new.o", "dir/\n odd", "nested/.git/HEAD", "nested/x", "sub/x"} {
		tr.put(name, "x")
	}
	require.NoError(t, os.MkdirAll(filepath.Join(tr.cfg.Dir, "empty/dir"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(tr.cfg.Dir, "closed/dir"), 0o755))
	require.NoError(t, os.Symlink("..", filepath.Join(tr.cfg.Dir, "up")))
	for dir, mode := range map[string]os.FileMode{
		filepath.Join(mod, "x"): 0o555, mod: 0o555, filepath.Join(tr.cfg.Dir, "closed"): 0,
	} {
		require.NoError(t, os.Chmod(dir, mode))
	}
	tr.clone(func(c *Config) { c.Clean = true })
	var left []string
	require.NoError(t, filepath.WalkDir(tr.cfg.Dir, func(at string, d os.DirEntry, err error) error {
		if err == nil && d.Name() == ".git" {
			return filepath.SkipDir
		}
		left = append(left, strings.TrimPrefix(at, tr.cfg.Dir))
		return err
	}))
	require.Equal(t, []string{"", "/.gitignore", "/a", "/dir", "/dir/b", "/sub", "/sub/x"}, left)
}

// Symptom: after a clone that had failed, as for a wrong branch, the next one called the directory a damaged clone, and
// asked the server twice.
func TestAFailedCloneIsNoDamagedClone(t *testing.T) {
	tr := newTrial(t)
	tr.repo.Commit("main", fetchtest.Texts(map[string]string{"a": "1"}))
	for range 2 {
		_, err := tr.try(func(c *Config) { c.Revision = "nowhere" })
		require.ErrorContains(t, err, "couldn't find remote ref nowhere")
	}
	require.NotContains(t, tr.said.String(), "damaged")
	tr.clone()
}

// Symptom: each clone fetched everything, though an earlier one had left nearly all of it.
func TestLaterCloneFetchesOnlyWhatIsNew(t *testing.T) {
	tr := newTrial(t)
	first := tr.repo.Commit("main", fetchtest.Texts(map[string]string{"a": "1"}))
	tr.clone()
	tr.repo.Commit("main", fetchtest.Texts(map[string]string{"a": "2"}))
	var asked atomic.Int64
	look := func(r *http.Request) {
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if bytes.Contains(body, []byte("have "+first+"\n")) {
			asked.Add(1)
		}
	}
	tr.before.Store(&look)
	tr.clone()
	tr.has("a", "2")
	require.Positive(t, asked.Load())
}

// Symptom: after a power cut that left files of git empty, no build could clone into the directory any more.
func TestADamagedCloneIsMadeAnew(t *testing.T) {
	tr := newTrial(t)
	tr.repo.Commit("main", fetchtest.Texts(map[string]string{"a": "1"}))
	tr.clone()
	tr.unpack()
	tr.repo.Commit("main", fetchtest.Texts(map[string]string{"a": "2"}))
	objects := filepath.Join(tr.cfg.Dir, ".git/objects")
	require.NoError(t, filepath.WalkDir(objects, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			err = errors.Join(os.Chmod(path, 0o600), os.Truncate(path, 0))
		}
		return err
	}))
	tr.clone()
	tr.has("a", "2")
}

//stepmux:faults engine | The token of a clone is in arguments, variables or files
func TestPasswordIsInNoArgumentVariableOrFile(t *testing.T) {
	tr := newTrial(t)
	tr.repo.Commit("main", fetchtest.Texts(map[string]string{"a": "1"}))
	var mu sync.Mutex
	var seen []byte
	look := func(*http.Request) {
		mu.Lock()
		defer mu.Unlock()
		for _, file := range []string{"cmdline", "environ"} {
			all, err := filepath.Glob("/proc/[0-9]*/" + file)
			require.NoError(t, err)
			for _, name := range all {
				data, _ := os.ReadFile(name) // others' are not readable
				seen = append(seen, data...)
			}
		}
	}
	tr.before.Store(&look)
	tr.clone()
	mu.Lock()
	defer mu.Unlock()
	require.Contains(t, string(seen), "remote-http", "git was looked at while it ran")
	require.NotContains(t, string(seen), tr.cfg.Password)
	require.NoError(t, filepath.WalkDir(tr.cfg.Dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		require.NotContains(t, string(data), tr.cfg.Password, path)
		return err
	}))
	g := &git{cfg: &tr.cfg}
	origin, err := g.output(t.Context(), "remote", "get-url", "origin")
	require.NoError(t, err)
	require.Equal(t, tr.cfg.URL, origin)
}

func TestSubmodulesOfTheSameServerAreCheckedOutWithTheSameLogin(t *testing.T) {
	tr := newTrial(t)
	deep := fetchtest.NewRepository(t, filepath.Join(tr.root, "p", "deep"))
	atDeep := deep.Commit("main", fetchtest.Texts(map[string]string{"d": "deep"}))
	sub := fetchtest.NewRepository(t, filepath.Join(tr.root, "p", "sub"))
	files := fetchtest.Texts(map[string]string{
		"s": "sub", ".gitmodules": "[submodule \"deep\"]\n\tpath = deep\n\turl = ../deep\n",
	})
	files["deep"] = fetchtest.File{Submodule: atDeep}
	atSub := sub.Commit("main", files)
	files = fetchtest.Texts(map[string]string{
		"a": "1", ".gitmodules": "[submodule \"sub\"]\n\tpath = sub\n\turl = ../sub\n",
	})
	files["sub"] = fetchtest.File{Submodule: atSub}
	tr.repo.Commit("main", files)

	tr.clone()
	tr.has("sub/s", "")
	tr.clone(func(c *Config) { c.Submodules = Normal })
	tr.has("sub/s", "sub")
	tr.has("sub/deep/d", "")
	tr.put("sub/s", "changed")
	tr.clone(func(c *Config) { c.Submodules, c.Depth, c.Clean = Recursive, 1, true })
	tr.has("sub/s", "sub")
	tr.has("sub/deep/d", "deep")
}

func TestFailuresNameTheirCause(t *testing.T) {
	tr := newTrial(t)
	commit := tr.repo.Commit("main", fetchtest.Texts(map[string]string{"a": "1"}))
	missing := "git fetch: repository '" + tr.server.URL + "/p/none/' not found"
	for want, change := range map[string]func(*Config){
		"the repository is not a URL such as https://host/path": func(c *Config) { c.URL = "ext::sh -c id" },
		"the repository's URL has a user":                       func(c *Config) { c.URL = "https://u:p@host/path" },
		"the revision is not valid":                             func(c *Config) { c.Revision = "--upload-pack=id" },
		"the revision is not valid; write a commit, a branch":   func(c *Config) { c.Revision = "main:refs/heads/evil" },
		"the depth is negative":                                 func(c *Config) { c.Depth = -1 },
		`submodules "all": use none, normal or recursive`:       func(c *Config) { c.Submodules = "all" },
		"git fetch: couldn't find remote ref nowhere":           func(c *Config) { c.Revision = "nowhere" },
		"git fetch: Authentication failed":                      func(c *Config) { c.Password = "wrong" },
		"git fetch: could not read Username":                    func(c *Config) { c.Password = "" },
		missing:                                                 func(c *Config) { c.URL = tr.server.URL + "/p/none" },
		"line break or a NUL byte":                              func(c *Config) { c.Password = "a\nb" },
		"the program git is not installed":                      func(c *Config) { t.Setenv("PATH", t.TempDir()) },
	} {
		path := os.Getenv("PATH")
		_, err := tr.try(change)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "wrong")
		t.Setenv("PATH", path)
	}
	require.Equal(t, commit, tr.clone(), "the directory can be used after a failure")
}

func TestCloneEndsWithItsContext(t *testing.T) {
	tr := newTrial(t)
	tr.repo.Commit("main", fetchtest.Texts(map[string]string{"a": "1"}))
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the job was stopped")
	release := make(chan struct{})
	stop := func(*http.Request) {
		cancel(why)
		<-release
	}
	tr.before.Store(&stop)
	_, err := Clone(ctx, tr.cfg)
	close(release)
	require.ErrorIs(t, err, why)
}
