package checkout

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/archive"
)

// answer returns the output of git in a directory, and its words about a failure.
func answer(dir string, args ...string) string {
	cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=Ann", "-c", "user.email=a@x.test"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_NO_LAZY_FETCH=1", "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out) + err.Error()
	}
	return string(out)
}

// jobOf returns the directory of a job of the project dir, with a copy of its repository.
func jobOf(t *testing.T, dir string, c Copying) string {
	t.Helper()
	made, err := CopyTo(t.Context(), dir, filepath.Join(t.TempDir(), "git"), c)
	require.NoError(t, err)
	warn := func(text string) { t.Log(text) }
	list := answer(dir, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	found, err := archive.Named(dir, strings.Split(strings.TrimSuffix(list, "\x00"), "\x00"), warn)
	require.NoError(t, err)
	defer found.Close()
	require.NoError(t, found.Beside(made.Dir, made.Names))
	packed, err := os.Create(filepath.Join(t.TempDir(), "packed"))
	require.NoError(t, err)
	defer packed.Close()
	require.NoError(t, found.Write(t.Context(), packed, archive.TarZstd, "fast"))
	job := filepath.Join(t.TempDir(), "job")
	require.NoError(t, os.Mkdir(job, 0o700))
	_, err = archive.Extract(t.Context(), packed, job, archive.Bounds{})
	require.NoError(t, err)
	return job
}

// requireSame requires that git says the same about the project and about the directory of its job.
func requireSame(t *testing.T, dir, job string) {
	t.Helper()
	for _, args := range []string{
		"status --porcelain --branch", "rev-parse HEAD", "symbolic-ref -q HEAD", "describe --tags --always --dirty",
		"diff --name-status", "diff --cached", "ls-files --stage --unmerged", "diff --exit-code",
	} {
		fields := strings.Fields(args)
		require.Equal(t, answer(dir, fields...), answer(job, fields...), "git %s", args)
	}
	require.NotContains(t, answer(job, "fsck", "--no-dangling"), "missing")
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
}

// history makes a repository with commits 1 to n on main, a tag of the second last, and branches of a remote.
func history(t *testing.T, n string, args ...string) (dir string, git func(args ...string)) {
	t.Helper()
	dir, git = repository(t)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, ".git")))
	git(append([]string{"init", "-q"}, args...)...)
	for i := range len(n) {
		write(t, dir, map[string]string{"a": strings.Repeat("line\n", i+1), "sub/b": "b" + n[i:i+1]})
		git("add", ".")
		git("commit", "-q", "-m", "commit "+n[i:i+1])
		if i == len(n)-2 {
			git("tag", "-a", "-m", "release", "v1")
		}
	}
	return dir, git
}

func TestAJobSeesTheStatusOfTheWorkTree(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, dir string, git func(args ...string)){
		"clean": func(*testing.T, string, func(...string)) {},
		"changes of every kind": func(t *testing.T, dir string, git func(...string)) {
			write(t, dir, map[string]string{
				"a": "changed", "new": "n", "staged": "s", "both": "1", ".gitignore": "*.o\n", "x.o": "ignored", "later": "",
			})
			git("add", "staged", "both")
			git("add", "--intent-to-add", "later")
			git("rm", "-q", "sub/b")
			write(t, dir, map[string]string{"both": "2"})
		},
		"a deleted file": func(t *testing.T, dir string, _ func(...string)) {
			require.NoError(t, os.Remove(filepath.Join(dir, "a")))
		},
		"a detached HEAD": func(_ *testing.T, _ string, git func(...string)) { git("checkout", "-q", "HEAD~1") },
		"a conflict": func(t *testing.T, dir string, git func(...string)) {
			git("checkout", "-q", "-b", "other", "HEAD~1")
			write(t, dir, map[string]string{"a": "theirs"})
			git("commit", "-q", "-a", "-m", "other")
			require.Contains(t, answer(dir, "merge", "main"), "CONFLICT")
		},
		"an ongoing rebase": func(t *testing.T, dir string, git func(...string)) {
			git("checkout", "-q", "-b", "other", "HEAD~1")
			write(t, dir, map[string]string{"a": "theirs"})
			git("commit", "-q", "-a", "-m", "other")
			require.Contains(t, answer(dir, "rebase", "main"), "CONFLICT")
		},
		"a split index": func(t *testing.T, dir string, git func(...string)) {
			git("update-index", "--split-index")
			write(t, dir, map[string]string{"c": "c"})
			git("add", "c")
			git("config", "core.splitIndex", "true")
		},
		"an untracked cache": func(_ *testing.T, _ string, git func(...string)) { git("update-index", "--untracked-cache") },
		"hidden changes": func(t *testing.T, dir string, git func(...string)) {
			git("update-index", "--skip-worktree", "a")
			git("update-index", "--assume-unchanged", "sub/b")
			write(t, dir, map[string]string{"a": "hidden", "sub/b": "hidden"})
		},
		"a sparse checkout": func(_ *testing.T, _ string, git func(...string)) {
			git("sparse-checkout", "set", "--cone", "sub")
		},
		"no mode bits": func(t *testing.T, dir string, git func(...string)) {
			git("config", "core.fileMode", "false")
			require.NoError(t, os.Chmod(filepath.Join(dir, "a"), 0o755))
		},
		"line endings": func(t *testing.T, dir string, git func(...string)) {
			git("config", "core.autocrlf", "true")
			require.NoError(t, os.Remove(filepath.Join(dir, "a")))
			git("checkout", "-q", "a")
		},
		"packs and no loose object": func(_ *testing.T, _ string, git func(...string)) { git("gc", "-q", "--prune=now") },
		"a long list of tags and branches": func(_ *testing.T, _ string, git func(...string)) {
			for _, name := range []string{"v2", "w/x", "z.1"} {
				git("tag", name, "HEAD~1")
				git("branch", name)
			}
			git("tag", "of-a-file", "HEAD:a")
		},
		"a branch with an upstream": func(_ *testing.T, _ string, git func(...string)) {
			git("remote", "add", "origin", "https://x.test/p")
			git("update-ref", "refs/remotes/origin/main", "HEAD~1")
			git("branch", "-q", "--set-upstream-to=origin/main")
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, git := history(t, "123")
			change(t, dir, git)
			for _, depth := range []Depth{All, 2} {
				requireSame(t, dir, jobOf(t, dir, Copying{Depth: depth}))
			}
		})
	}
}

func TestAJobSeesTheStatusOfOtherKindsOfWorkTrees(t *testing.T) {
	dir, git := history(t, "123")
	t.Run("a linked one", func(t *testing.T) {
		other := filepath.Join(t.TempDir(), "linked")
		git("worktree", "add", "-q", "-b", "linked", other, "HEAD~1")
		write(t, other, map[string]string{"a": "x"})
		requireSame(t, other, jobOf(t, other, Copying{Depth: 5}))
	})
	t.Run("of a shallow clone", func(t *testing.T) {
		shallow := filepath.Join(t.TempDir(), "clone")
		git("clone", "-q", "--depth=2", "file://"+dir, shallow)
		for _, depth := range []Depth{All, 20, 2, 1} {
			job := jobOf(t, shallow, Copying{Depth: depth})
			if depth != 1 {
				requireSame(t, shallow, job)
				require.Equal(t, answer(shallow, "log"), answer(job, "log"))
			}
		}
	})
	t.Run("of a clone with alternates", func(t *testing.T) {
		shared := filepath.Join(t.TempDir(), "clone")
		git("clone", "-q", "--shared", dir, shared)
		job := jobOf(t, shared, Copying{Depth: All})
		requireSame(t, shared, job)
		require.NoFileExists(t, filepath.Join(job, ".git/objects/info/alternates"))
	})
	t.Run("of a partial clone whose server is away", func(t *testing.T) {
		server, partial := filepath.Join(t.TempDir(), "server"), filepath.Join(t.TempDir(), "clone")
		git("clone", "-q", "--bare", dir, server)
		require.Empty(t, answer(server, "config", "uploadpack.allowFilter", "true"))
		git("clone", "-q", "--filter=blob:none", "file://"+server, partial)
		require.NoError(t, os.Rename(server, server+".away"))
		for _, depth := range []Depth{All, 2} {
			job := jobOf(t, partial, Copying{Depth: depth})
			require.Equal(t, answer(partial, "status", "--porcelain", "-b"), answer(job, "status", "--porcelain", "-b"))
			require.Equal(t, answer(partial, "log", "-2"), answer(job, "log", "-2"))
			require.NotContains(t, answer(job, "fsck"), "missing")
		}
	})
	t.Run("a submodule, and one with a submodule", func(t *testing.T) {
		above, in := history(t, "12")
		in("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", dir, "mod")
		in("commit", "-q", "-m", "mod")
		requireSame(t, filepath.Join(above, "mod"), jobOf(t, filepath.Join(above, "mod"), Copying{Depth: 20}))
		job := jobOf(t, above, Copying{Depth: 20})
		require.Equal(t, answer(above, "status", "--porcelain"), answer(job, "status", "--porcelain"))
	})
	t.Run("with SHA-256", func(t *testing.T) {
		sha256, _ := history(t, "123", "--object-format=sha256")
		write(t, sha256, map[string]string{"a": "x"})
		job := jobOf(t, sha256, Copying{Depth: 2})
		requireSame(t, sha256, job)
		require.Len(t, strings.TrimSpace(answer(job, "rev-parse", "HEAD")), 64)
	})
	t.Run("without a commit", func(t *testing.T) {
		empty, in := repository(t)
		requireSame(t, empty, jobOf(t, empty, Copying{Depth: 20}))
		write(t, empty, map[string]string{"a": "a", "b": "b"})
		in("add", "a")
		requireSame(t, empty, jobOf(t, empty, Copying{Depth: All}))
	})
	t.Run("a link to one", func(t *testing.T) {
		link := filepath.Join(t.TempDir(), "link")
		require.NoError(t, os.Symlink(dir, link))
		requireSame(t, link, jobOf(t, link, Copying{Depth: 20}))
	})
	t.Run("files in another form than git keeps them", func(t *testing.T) { // as those of Git LFS
		other, in := history(t, "1")
		write(t, other, map[string]string{".gitattributes": "*.bin filter=up\n"})
		in("config", "filter.up.clean", "tr a-z A-Z")
		in("config", "filter.up.smudge", "tr A-Z a-z")
		write(t, other, map[string]string{"x.bin": "hello"})
		in("add", ".")
		in("commit", "-q", "-m", "filtered")
		require.Equal(t, "HELLO", answer(other, "show", "HEAD:x.bin"))
		requireSame(t, other, jobOf(t, other, Copying{Depth: 20}))
	})
}

func TestTheHistoryOfAJobEndsAtItsDepth(t *testing.T) {
	dir, git := history(t, "12345")
	git("update-ref", "refs/remotes/origin/old", "HEAD~3")
	git("update-ref", "refs/remotes/origin/main", "HEAD~1")
	git("tag", "v0", "HEAD~4")
	git("checkout", "-q", "-b", "topic")
	git("commit", "-q", "--allow-empty", "-m", "6")
	for depth, want := range map[Depth][]string{
		1:   {"1", "", "refs/heads/topic refs/remotes/origin/main refs/tags/v1"},
		3:   {"5", "v1", "refs/heads/topic refs/remotes/origin/main refs/tags/v1"},
		All: {"6", "v1", "refs/heads/topic refs/remotes/origin/main refs/remotes/origin/old refs/tags/v0 refs/tags/v1"},
	} {
		job := jobOf(t, dir, Copying{Depth: depth})
		require.Equal(t, want[0], strings.TrimSpace(answer(job, "rev-list", "--count", "HEAD")), "depth %d", depth)
		tag := strings.TrimSpace(answer(job, "describe", "--tags", "--abbrev=0"))
		if want[1] == "" {
			require.Contains(t, tag, "fatal")
		} else {
			require.Equal(t, want[1], tag)
		}
		list := strings.Join(strings.Fields(answer(job, "for-each-ref", "--format=%(refname)")), " ")
		require.Equal(t, strings.Replace(want[2], "origin/main", "origin/HEAD refs/remotes/origin/main", 1), list)
	}
	job := jobOf(t, dir, Copying{Depth: 4})
	require.Equal(t, answer(dir, "diff", "--stat", "origin/main..."), answer(job, "diff", "--stat", "origin/main..."))
	require.Empty(t, answer(job, "status", "--porcelain"))
	job = jobOf(t, dir, Copying{Depth: 4, Detached: true})
	require.Contains(t, answer(job, "symbolic-ref", "HEAD"), "fatal")
	require.Equal(t, answer(dir, "rev-parse", "HEAD"), answer(job, "rev-parse", "HEAD"))
	made, err := CopyTo(t.Context(), dir, t.TempDir(), Copying{Depth: None})
	require.NoError(t, err)
	require.Empty(t, made.Names)
}

func TestAMergeOfALongSideBranchIsCopiedToItsDepth(t *testing.T) {
	dir, git := history(t, "1")
	git("branch", "side")
	tree := strings.TrimSpace(answer(dir, "write-tree"))
	commits := func(ref string, n, at int) {
		cmd := exec.Command("git", "-C", dir, "fast-import", "--quiet", "--force")
		var input strings.Builder
		for i := range n {
			from := ""
			if i == 0 {
				from = "from " + ref + "^0\n"
			}
			fmt.Fprintf(&input, "commit %s\ncommitter a <a@x.test> %d +0000\ndata 1\nx\n%s\n", ref, at+i, from)
		}
		cmd.Stdin = strings.NewReader(input.String())
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	commits("refs/heads/side", 3, 1_000_000_000)
	commits("refs/heads/main", 1500, 1_700_000_000)
	git("merge", "-q", "-m", "merge", "side")
	require.Equal(t, tree, strings.TrimSpace(answer(dir, "rev-parse", "HEAD^{tree}")))
	other := filepath.Join(t.TempDir(), "clone")
	for _, depth := range []string{"1", "2", "3", "4", "50", "1600"} {
		require.NoError(t, os.RemoveAll(other))
		git("clone", "-q", "--depth="+depth, "file://"+dir, other)
		of, err := ParseDepth(depth)
		require.NoError(t, err)
		job := jobOf(t, dir, Copying{Depth: of})
		require.Equal(t, answer(other, "rev-list", "HEAD"), answer(job, "rev-list", "HEAD"), "as git clone --depth %s", depth)
		require.Empty(t, answer(job, "status", "--porcelain"))
	}
}

func TestNothingPrivateOfARepositoryIsCopied(t *testing.T) {
	dir, git := history(t, "12")
	write(t, dir, map[string]string{
		".git/hooks/pre-commit": "#!/bin/sh\ntouch \"$PWD/ran\"\n", ".git/info/exclude": "secret-file\n", "secret-file": "s",
		".git/info/attributes": "* filter=bad\n",
	})
	require.NoError(t, os.Chmod(filepath.Join(dir, ".git/hooks/pre-commit"), 0o755))
	included := filepath.Join(t.TempDir(), "included")
	require.NoError(t, os.WriteFile(included, []byte("[alias]\nx = secret\n"), 0o600))
	for _, setting := range [][]string{
		{"credential.helper", "store"},
		{"core.hooksPath", "/hooks"},
		{"core.fsmonitor", "touch /ran"},
		{"include.path", included},
		{"user.name", "Secret Name"},
		{"http.extraHeader", "Authorization: secret"},
		{"core.sshCommand", "ssh -i secret"},
		{"core.eol", "lf\n\tsshCommand = x"},
		{"branch.main.description", "secret"},
		{"filter.bad.clean", "cat"},
	} {
		git("config", setting[0], setting[1])
	}
	git("remote", "add", "origin", "https://me:secret@x.test:444/group/p.git?private_token=secret")
	git("stash", "list")
	git("branch", "private-secret")
	job := jobOf(t, dir, Copying{Depth: All})
	config, err := os.ReadFile(filepath.Join(job, ".git/config"))
	require.NoError(t, err)
	require.Equal(t, `[core]
	repositoryformatversion = 0
	bare = false
	logallrefupdates = true
	checkStat = minimal
	filemode = true
[remote "origin"]
	url = "https://x.test:444/group/p.git"
	fetch = +refs/heads/*:refs/remotes/origin/*
`, string(config))
	require.NoDirExists(t, filepath.Join(job, ".git/hooks"))
	require.NoDirExists(t, filepath.Join(job, ".git/info"))
	require.NoError(t, filepath.WalkDir(filepath.Join(job, ".git"), func(name string, entry os.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			require.NotContains(t, string(text), "secret", "%s", name)
		}
		return err
	}))
	require.Equal(t, "https://x.test:444/group/p.git\n", answer(job, "remote", "get-url", "origin"))
}

func TestAURLLosesItsLogin(t *testing.T) {
	for url, want := range map[string]string{
		"https://x.test/p.git":                         "https://x.test/p.git",
		"https://me@x.test/p":                          "https://x.test/p",
		"https://me:p@ss@x.test:44/p":                  "https://x.test:44/p",
		"HTTP://a:b@x.test/p?t=s#u":                    "HTTP://x.test/p",
		"https://a:b@x.test":                           "https://x.test/",
		"ssh://git@x.test:22/p":                        "ssh://git@x.test:22/p",
		"ssh://git:pw@x.test/p":                        "ssh://git@x.test/p",
		"ssh://git@[::1]:22/p":                         "ssh://git@[::1]:22/p",
		"git@x.test:group/p.git":                       "git@x.test:group/p.git",
		"/srv/p.git":                                   "/srv/p.git",
		"../p":                                         "../p",
		`C:\p "q"`:                                     `C:\p "q"`,
		"file:///srv/a@b/p":                            "file:///srv/a@b/p",
		"ext::sh -c 'echo secret' %S":                  "",
		"https://x.test/p\n\tsshCommand=x":             "",
		"https://x/" + strings.Repeat("a", maxMessage): "",
	} {
		require.Equal(t, want, withoutLogin(url), "%.100q", url)
	}
	dir, git := history(t, "1")
	for _, url := range []string{`C:\p "q" # ; x`, `a"b\`} {
		git("config", "remote.origin.url", url)
		git("config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*")
		require.Equal(t, url+"\n", answer(jobOf(t, dir, Copying{Depth: 1}), "config", "remote.origin.url"))
	}
}

func TestARepositoryThatCannotBeCopiedIsToldAbout(t *testing.T) {
	dir, _ := history(t, "12")
	for name, at := range map[string]string{
		"not the top of its work tree": filepath.Join(dir, "sub"), "not in a work tree": filepath.Join(dir, ".git"),
	} {
		made, err := CopyTo(t.Context(), at, filepath.Join(t.TempDir(), "git"), Copying{Depth: 1})
		require.ErrorContains(t, err, name)
		require.Empty(t, made.Names)
	}
	made, err := CopyTo(t.Context(), t.TempDir(), filepath.Join(t.TempDir(), "git"), Copying{Depth: 1})
	require.NoError(t, err, "no repository")
	require.Empty(t, made.Names)
	object := strings.TrimSpace(answer(dir, "rev-parse", "HEAD:a"))
	require.NoError(t, os.Remove(filepath.Join(dir, ".git/objects", object[:2], object[2:])))
	_, err = CopyTo(t.Context(), dir, filepath.Join(t.TempDir(), "git"), Copying{Depth: 1})
	require.ErrorContains(t, err, object)
}

func TestDepthsOfAHistory(t *testing.T) {
	for text, want := range map[string]Depth{
		"1": 1, "20": 20, "0": All, "all": All, "none": None, "2147483647": maxDepth,
	} {
		depth, err := ParseDepth(text)
		require.NoError(t, err)
		require.Equal(t, want, depth, text)
	}
	for _, text := range []string{"", "-1", "x", "1.5", "99999999999999999999999"} {
		_, err := ParseDepth(text)
		require.ErrorContains(t, err, "use a number, all or none", text)
	}
}

// A copy writes nothing into the repository, not even a temporary file, whatever its path is.
func TestACopyLeavesTheRepositoryAsItIs(t *testing.T) {
	dir, _ := history(t, "123")
	odd := filepath.Join(t.TempDir(), `a:b "c" \d é`)
	require.NoError(t, os.Rename(dir, odd))
	listed := func() (all []string) {
		require.NoError(t, filepath.WalkDir(odd, func(path string, d os.DirEntry, err error) error {
			require.NoError(t, err)
			info, err := d.Info()
			require.NoError(t, err)
			all = append(all, fmt.Sprint(path, info.Mode(), info.Size(), info.ModTime()))
			return nil
		}))
		return all
	}
	before := listed()
	for _, depth := range []Depth{1, All} {
		made, err := CopyTo(t.Context(), odd, t.TempDir(), Copying{Depth: depth})
		require.NoError(t, err)
		require.NotEmpty(t, made.Names)
	}
	require.Equal(t, before, listed())
}
