package fetch

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// Package lang checks references in texts; a store must refuse bad ones from elsewhere, too.
//
//stepmux:faults vulnerabilities | Arguments that git takes for options; commands that a repository makes git run |
//stepmux:more references are checked; git gets none of the machine's or the repository's configuration
//stepmux:with remote/step/fetch.TestNothingOfARepositoryOrOfTheMachineIsRun
func TestReferencesThatMeanHarmRunNothing(t *testing.T) {
	h := newGitHost(t)
	h.echo("c/echo")
	dir := t.TempDir()
	t.Chdir(dir)
	touch := "touch " + filepath.Join(dir, "pwned")
	s := newStore(t)
	for _, ref := range []*pb.Reference{
		{Protocol: pb.Reference_git, Url: "ext::sh -c " + strings.ReplaceAll(touch, " ", "% "), Rev: "v1"},
		{Protocol: pb.Reference_git, Url: "--upload-pack=" + touch, Rev: "v1"},
		{Protocol: pb.Reference_git, Url: h.URL + "/c/echo", Rev: "--upload-pack=" + touch},
		{Protocol: pb.Reference_git, Url: h.URL + "/c/echo", Rev: "-v"},
		{Protocol: pb.Reference_git, Url: h.URL + "/c/echo", Rev: "v1\nv2"},
		{Protocol: pb.Reference_git, Url: h.URL + "/c/echo", Rev: "a..b"},
		{Protocol: pb.Reference_git, Url: h.URL + "/c/echo", Rev: ""},
		{Protocol: pb.Reference_git, Url: h.URL + "/c/echo", Rev: "refs/heads/none"},
		{Protocol: pb.Reference_git, Url: h.URL + "/c/\"; " + touch + "; \"", Rev: "v1"},
		{Protocol: pb.Reference_git, Url: h.URL + "/c/echo\n[core]\nx=", Rev: "v1"},
		{Protocol: pb.Reference_git, Url: "file://" + h.root + "/c/echo", Rev: "v1"},
		{Protocol: pb.Reference_git, Url: "ssh://-oProxyCommand=" + touch + "/x", Rev: "v1"},
		{Protocol: pb.Reference_git, Url: h.root + "/c/echo", Rev: "v1"},
		{Protocol: pb.Reference_zip, Url: "ftp://example.com/x.zip"},
		{Protocol: pb.Reference_zip, Url: "file://example.com/x.zip"},
		{Protocol: pb.Reference_zip, Url: "%zz"},
		{Protocol: pb.Reference_oci, Registry: "-x", Repository: "y z", Tag: "1"},
		{Protocol: pb.Reference_oci, Registry: h.Host, Repository: "y", Tag: "a b"},
		{Protocol: pb.Reference_local, Path: "."},
		{},
	} {
		_, err := s.Fetch(t.Context(), ref, Credentials{})
		require.Error(t, err, "%v", ref)
		require.NotContains(t, err.Error(), "\n")
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}

// rawTree makes a tree of entries "<mode> <name>", each with its object, and returns its name. git itself would refuse
// some.
func rawTree(t testing.TB, r *fetchtest.Repository, entries ...[2]string) string {
	t.Helper()
	raw := ""
	for _, e := range entries {
		id, err := hex.DecodeString(e[1])
		require.NoError(t, err)
		raw += e[0] + "\x00" + string(id)
	}
	return r.Input(raw, "hash-object", "-w", "-t", "tree", "--literally", "--stdin")
}

// hostileTree makes a commit of a tree with an entry that git itself refuses.
func hostileTree(t testing.TB, r *fetchtest.Repository, mode, name string) string {
	t.Helper()
	blob := r.Input("../../../../etc/passwd", "hash-object", "-w", "--stdin")
	return r.Git("commit-tree", "-m", "x", rawTree(t, r, [2]string{mode + " " + name, blob}))
}

func TestTreesThatMeanHarmAreRefused(t *testing.T) {
	for name, tc := range map[string]struct{ mode, name string }{
		"up":            {"100644", ".."},
		"of git":        {"100644", ".git"},
		"in other case": {"100644", ".Git"},
		"two parts":     {"100644", "a/b"},
		"absolute":      {"100644", "/etc/x"},
		"backslash":     {"100644", `a\b`},
		"symlink":       {"120000", "l"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newGitHost(t)
			r := h.repository("c/evil")
			commit := hostileTree(t, r, tc.mode, tc.name)
			r.Git("update-ref", "refs/heads/main", commit)
			s := newStore(t)
			refused(t, s, h.URL+"/c/evil@main")
			require.Empty(t, components(t, s))
		})
	}
}

func TestServerThatSendsTooMuchIsStopped(t *testing.T) {
	h := newGitHost(t)
	noise := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	commit := h.repository("c/large").Commit("main", fetchtest.Texts(map[string]string{"a": string(noise)}))
	s := newStore(t)
	s.limits.total = 100 << 10
	require.Equal(t, "the data of the server: the size exceeds the limit; 102400 bytes are left",
		refused(t, s, h.URL+"/c/large@"+commit))
	s.limits = limits{entries: 100, file: 100 << 10, total: 10 << 20, ratio: 200}
	require.Contains(t, refused(t, s, h.URL+"/c/large@"+commit), `"a": the size exceeds the limit`)
	s.limits.file = 10 << 20
	get(t, s, h.URL+"/c/large@"+commit)
}

func TestMirrorTakesThePlaceOfARepository(t *testing.T) {
	h := newGitHost(t)
	commit := h.echo("c/echo")
	login := h.private()
	s := newStore(t, func(c *Config) {
		c.Mirrors = map[string]string{
			"https://example.com/": "http://127.0.0.1:1/", "https://example.com/c/": h.URL + "/c/",
			"https://local.example": h.root,
		}
	})
	c := get(t, s, "example.com/c/echo@v1", login)
	require.Equal(t, commit, c.Commit)
	require.Equal(t, "https://example.com/c/echo", c.Location)
	require.Contains(t, refused(t, s, "example.com/c/echo@v1", loginAt("https://example.com", user, secret)),
		"wants credentials")
	require.Equal(t, commit, get(t, s, "local.example/c/echo@v1").Commit)
	require.Contains(t, refused(t, s, "local.example/c/none@v1"), "HTTP status 404")
}

// Symptom: jobs of an ordinary user could not use the actions that root had brought.
func TestAMirrorMayBelongToAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("part missing: root, to give files to another user")
	}
	h := newGitHost(t)
	commit := h.echo("c/echo")
	require.NoError(t, filepath.WalkDir(h.root, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, 65534, 65534))
	}))
	s := newStore(t, func(c *Config) { c.Mirrors = map[string]string{"https://local.example": h.root} })
	require.Equal(t, commit, get(t, s, "local.example/c/echo@v1").Commit)
}

// The attributes and hooks of a repository, and the configuration of the machine, have no effect.
func TestNothingOfARepositoryOrOfTheMachineIsRun(t *testing.T) {
	dir := t.TempDir()
	pwned := filepath.Join(dir, "pwned")
	hooks := filepath.Join(dir, "hooks")
	require.NoError(t, os.Mkdir(hooks, 0o755))
	for _, hook := range []string{"post-checkout", "reference-transaction", "post-index-change", "pre-auto-gc"} {
		require.NoError(t, os.WriteFile(filepath.Join(hooks, hook), []byte("#!/bin/sh\ntouch "+pwned+"\n"), 0o755))
	}
	config := fmt.Sprintf("[core]\n\thooksPath = %s\n\tfsmonitor = touch %s\n\tsshCommand = touch "+
		"%s\n[credential]\n\thelper = \"!touch %s\"\n"+
		"[filter \"evil\"]\n\tsmudge = touch %s\n[url \"http://127.0.0.1:1/\"]\n\tinsteadOf = http://\n", hooks, pwned, pwned,
		pwned, pwned)
	home := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(home, ".gitconfig"), []byte(config), 0o644))
	h := newGitHost(t)
	r := h.repository("c/evil")
	commit := r.Commit("main", fetchtest.Texts(map[string]string{
		".gitattributes": "* filter=evil\n", "hooks/post-checkout": "touch " + pwned, "config": config,
	}))
	r.Git("update-ref", "refs/tags/v1", commit)
	r.Commit("evil",
		fetchtest.Texts(map[string]string{".gitmodules": "[submodule \"x\"]\n\tpath = x\n\turl = -u./evil\n"}))
	t.Setenv("HOME", home)
	t.Setenv("GIT_CONFIG_GLOBAL", filepath.Join(home, ".gitconfig"))
	t.Setenv("GIT_SSH_COMMAND", "touch "+pwned)
	t.Setenv("GIT_ASKPASS", filepath.Join(hooks, "post-checkout"))
	t.Setenv("GIT_DIR", home)
	s := newStore(t)
	get(t, s, h.URL+"/c/evil@v1")
	refused(t, s, h.URL+"/c/none@v1")
	require.Contains(t, refused(t, s, h.URL+"/c/evil@evil"), "disallowed submodule url")
	require.NoFileExists(t, pwned)
}

// Any process of the same user can read the arguments and the environment of git, and files that it has open.
//
//stepmux:faults fetch | The login for a private repository can be read in the arguments, the environment or the open
//stepmux:more files of git
//stepmux:with remote/step/fetch.TestCredentialsMayHaveAnyCharacterOfALine
func TestCredentialsAreInNothingThatAProcessShows(t *testing.T) {
	h := newGitHost(t)
	h.echo("c/private")
	login := h.private()
	s := newStore(t)
	looked := atomic.Int64{}
	h.Before = func(_ http.ResponseWriter, r *http.Request) bool {
		_, password, _ := r.BasicAuth()
		if r.Method != http.MethodPost || password != secret { // git is at work with it
			return false
		}
		forms := []string{secret, basicAuth(new(loginAt("", user, secret)))[len("Basic "):]}
		for _, pattern := range []string{"cmdline", "environ", "fd/*"} {
			all, err := filepath.Glob("/proc/[0-9]*/" + pattern)
			assert.NoError(t, err)
			for _, path := range all {
				if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() || info.Size() > 1<<20 {
					continue
				}
				data, _ := os.ReadFile(path) // it may have ended
				if strings.Contains(string(data), "GIT_TERMINAL_PROMPT") {
					looked.Add(1)
				}
				for _, form := range forms {
					assert.False(t, strings.Contains(string(data), form), path)
				}
			}
		}
		assert.False(t, contains(t, s.cfg.Dir, secret))
		return false
	}
	get(t, s, h.URL+"/c/private@v1", login)
	require.Positive(t, looked.Load(), "the environment of git was among them")
}

func TestCredentialsMayHaveAnyCharacterOfALine(t *testing.T) {
	for _, login := range [][2]string{
		{"u", `p %s "x" 'y' \n $HOME ;=é `},
		{" u=@/ ", " p\xff "},
		{"token", ""},
		{"", "p"},
		{"u", strings.Repeat("long", 4096)},
		{"u", "a\nhost=evil.example\r\x00"},
	} {
		h := newGitHost(t)
		commit := h.echo("c/private")
		h.Before = func(w http.ResponseWriter, r *http.Request) bool {
			if name, password, ok := r.BasicAuth(); ok && name == login[0] && password == login[1] {
				return false
			}
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return true
		}
		require.Equal(t, commit, get(t, newStore(t), h.URL+"/c/private@v1", loginAt(h.URL, login[0], login[1])).Commit)
	}
}

func TestForeignTextIsShownOnOneLineWithoutControls(t *testing.T) {
	require.Equal(t, "a b [31mc d", termtext.Short("a\n\tb\x1b[31mc\x00\x9b d\xff", 100))
	require.Equal(t, "äb...", termtext.Short("äbcdef", 3))
	err := &gitError{command: "fetch", stderr: "remote: \x1b]0;x\nfatal: bad\x07 thing\n", err: os.ErrInvalid}
	require.Equal(t, "git fetch: bad thing", err.Error())
}
