package checkout

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// repository makes a repository and returns its directory and a function that runs git in it.
func repository(t *testing.T) (dir string, git func(args ...string)) {
	t.Helper()
	dir = t.TempDir()
	t.Setenv("GIT_CONFIG_GLOBAL", "/dev/null")
	git = func(args ...string) {
		cmd := exec.Command("env", append([]string{
			"-u", "GIT_DIR", "git", "-C", dir, "-c", "user.name=Ann", "-c", "user.email=ann@x.test",
			"-c", "init.defaultBranch=main",
		}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_COMMITTER_DATE=2026-01-02T03:04:05+01:00")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	git("init", "-q")
	return dir, git
}

func values(t *testing.T, dir string) map[string]string {
	t.Helper()
	vars, err := Variables(t.Context(), dir)
	require.NoError(t, err)
	all := map[string]string{}
	for _, v := range vars {
		all[v.Name] = v.Value
	}
	return all
}

func TestVariablesAreThoseOfTheCommitThatIsCheckedOut(t *testing.T) {
	require.Empty(t, values(t, t.TempDir()), "no repository, no error")
	dir, git := repository(t)
	require.Empty(t, values(t, dir), "no commit, no error")
	t.Setenv("GIT_DIR", "/nowhere") // as a hook of git may have it
	git("commit", "-q", "--allow-empty", "-m", "Title $HOME\n\nMore\nlines")
	v := values(t, dir)
	require.Len(t, v["CI_COMMIT_SHA"], 40)
	require.Equal(t, v["CI_COMMIT_SHA"][:8], v["CI_COMMIT_SHORT_SHA"])
	require.Equal(t, "Title $HOME\n\nMore\nlines", v["CI_COMMIT_MESSAGE"])
	require.Equal(t, "Title $HOME", v["CI_COMMIT_TITLE"])
	require.Equal(t, "More\nlines", v["CI_COMMIT_DESCRIPTION"])
	require.Equal(t, "Ann <ann@x.test>", v["CI_COMMIT_AUTHOR"])
	require.Equal(t, "2026-01-02T03:04:05+01:00", v["CI_COMMIT_TIMESTAMP"])
	require.Equal(t, []string{"main", "main", "main"},
		[]string{v["CI_COMMIT_BRANCH"], v["CI_COMMIT_REF_NAME"], v["CI_COMMIT_REF_SLUG"]})
	require.NotContains(t, v, "CI_COMMIT_TAG")
	require.NotContains(t, v, "CI_DEFAULT_BRANCH")
	require.NotContains(t, v, "CI_PROJECT_PATH")

	git("config", "url.https://mirror/all/.insteadOf", "https://me:secret@host:444/") // for fetches
	git("remote", "add", "origin", "https://me:secret@host:444/group/sub/p.git")
	git("update-ref", "refs/remotes/origin/trunk", "HEAD")
	git("symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/trunk")
	git("tag", "v1.0/Beta")
	git("checkout", "-q", "--detach")
	v = values(t, dir)
	require.Equal(t, []string{"v1.0/Beta", "v1.0/Beta", "v1-0-beta", "trunk"},
		[]string{v["CI_COMMIT_TAG"], v["CI_COMMIT_REF_NAME"], v["CI_COMMIT_REF_SLUG"], v["CI_DEFAULT_BRANCH"]})
	require.NotContains(t, v, "CI_COMMIT_BRANCH")
	require.Equal(t, []string{"group/sub/p", "group/sub", "group"},
		[]string{v["CI_PROJECT_PATH"], v["CI_PROJECT_NAMESPACE"], v["CI_PROJECT_ROOT_NAMESPACE"]})
}

func TestTheProjectIsThatOfTheRemote(t *testing.T) {
	for url, want := range map[string]string{
		"git@host:o/r.git": "o/r", "ssh://git@host:22/o/r": "o/r", "http://host/o/r.git/": "o/r",
		"git://h/a.b/c_d-e": "a.b/c_d-e",
		"/srv/o/r.git":      "", "file:///srv/o/r.git": "", "../r": "", "https://host/r": "", "": "",
		"https://host/o/r?x":  "",
		"https://host/o/r\nx": "", "https://host/" + strings.Repeat("a/", 200) + "r": "",
	} {
		require.Equal(t, want, projectOf(url), url)
	}
}

// Symptom: "run --project LINK", with a link to a directory of a repository, sent the files that git ignores.
func TestALinkToADirectoryOfARepositoryIsInTheRepository(t *testing.T) {
	dir, _ := repository(t)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(filepath.Join(dir, "sub"), link))
	require.True(t, Contains(link))
}

// The configuration of a repository makes git print more, or other texts, and a commit can have any bytes.
func TestOutputOfGitIsNotBelieved(t *testing.T) {
	dir, git := repository(t)
	message := "a\xffb\x1b[2J\n\n" + strings.Repeat("x", 1<<20)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "message"), []byte(message), 0o600))
	signer, ran := filepath.Join(dir, "signer"), filepath.Join(dir, "ran")
	require.NoError(t, os.WriteFile(signer, []byte("#!/bin/sh\ncat >/dev/null\ntouch '"+ran+"'\n"+
		"printf '\n[GNUPG:] SIG_CREATED \n' >&2\n"+
		"printf -- '-----BEGIN PGP SIGNATURE-----\n-----END PGP SIGNATURE-----\n'\n"), 0o700))
	git("config", "log.showSignature", "true")
	git("config", "gpg.program", signer)
	git("config", "core.pager", "/bin/false")
	git("config", "i18n.commitEncoding", "nonsense")
	git("commit", "-q", "-S", "--allow-empty", "-F", filepath.Join(dir, "message"))
	require.NoError(t, os.Remove(ran), "it has signed")
	v := values(t, dir)
	require.NoFileExists(t, ran)
	require.Len(t, v["CI_COMMIT_SHA"], 40)
	require.Len(t, v["CI_COMMIT_MESSAGE"], maxMessage)
	require.Equal(t, "a\uFFFDb\x1b[2J", v["CI_COMMIT_TITLE"])

	require.NoError(t, os.WriteFile(filepath.Join(dir, ".git", "HEAD"), []byte("not a ref\n"), 0o600))
	_, err := Variables(t.Context(), dir)
	require.ErrorContains(t, err, "not a git repository")
}

func TestChangedAreTheFilesOfTheLastCommitAndAfterIt(t *testing.T) {
	none, err := Changed(t.Context(), t.TempDir(), "")
	require.NoError(t, err)
	require.Nil(t, none)
	dir, git := repository(t)
	write := func(names ...string) {
		for _, name := range names {
			require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600))
			git("add", name)
		}
		git("commit", "-q", "-m", "more")
	}
	write("first")
	none, err = Changed(t.Context(), dir, "")
	require.NoError(t, err)
	require.Nil(t, none, "before the first commit nothing is known")
	git("branch", "base")
	write("docs/a.md")
	write("src/b c.go")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "new\nfile"), nil, 0o600))
	changed, err := Changed(t.Context(), dir, "")
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"src/b c.go", "new\nfile"}, changed)
	changed, err = Changed(t.Context(), dir, "base")
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"docs/a.md", "src/b c.go", "new\nfile"}, changed)
	git("update-ref", "refs/remotes/origin/theirs", "base")
	changed, err = Changed(t.Context(), dir, "theirs")
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"docs/a.md", "src/b c.go", "new\nfile"}, changed, "a branch of the remote alone")
	for _, wrong := range []string{"gone", "--output=/tmp/x", "a b"} {
		_, err = Changed(t.Context(), dir, wrong)
		require.ErrorContains(t, err, wrong)
	}
}

// Symptom: each byte of a character became a dash, where GitLab has one for the character.
func TestIgnoredAreTheFilesThatGitLeavesOut(t *testing.T) {
	names, err := Ignored(t.Context(), t.TempDir())
	require.NoError(t, err)
	require.Empty(t, names, "no repository, no error")
	dir, _ := repository(t)
	for name, text := range map[string]string{
		".gitignore": "node_modules\n*.log\n", "a/node_modules/b/c.js": "", "a/x.log": "", "a/x.js": "", "new": "",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	names, err = Ignored(t.Context(), dir)
	require.NoError(t, err)
	require.Equal(t, []string{"a/node_modules/", "a/x.log", ""}, names)
	names, err = Ignored(t.Context(), filepath.Join(dir, "a"))
	require.NoError(t, err)
	require.Equal(t, []string{"node_modules/", "x.log", ""}, names)
}

func TestSlugHasADashForEachCharacter(t *testing.T) {
	require.Equal(t, "fix-f-r-alle", Slug("fix/Für-alle"))
}

func TestNamesThatTheRepositoryHas(t *testing.T) {
	dir, git := repository(t)
	_, err := Commit(t.Context(), dir, "main")
	require.ErrorContains(t, err, `the repository has no commit "main"`)
	git("commit", "-q", "--allow-empty", "-m", "x")
	require.Empty(t, Tag(t.Context(), dir))
	git("tag", "v1")
	require.Equal(t, "v1", Tag(t.Context(), dir))
	for _, name := range []string{"main", "v1", "HEAD", "HEAD~0"} {
		id, err := Commit(t.Context(), dir, name)
		require.NoError(t, err)
		require.Equal(t, values(t, dir)["CI_COMMIT_SHA"], id)
	}
	for _, name := range []string{"", "--help", "gone", "a b", "HEAD~9"} {
		_, err := Commit(t.Context(), dir, name)
		require.Error(t, err, name)
	}
	common := Repository(t.Context(), dir)
	require.Equal(t, filepath.Join(dir, ".git"), common)
	tree := filepath.Join(t.TempDir(), "tree")
	git("worktree", "add", "-q", tree)
	require.Equal(t, common, Repository(t.Context(), tree))
	none := t.TempDir()
	_, err = Commit(t.Context(), none, "main")
	require.ErrorContains(t, err, "there is no git repository")
	require.Equal(t, none, Repository(t.Context(), none))
}
