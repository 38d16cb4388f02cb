package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/filelock"
	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	"github.com/stepmux/stepmux/remote/step/component"
)

// zipFile writes an archive and returns the reference to it.
func zipFile(t testing.TB, files fetchtest.Files) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s.zip")
	require.NoError(t, os.WriteFile(path, fetchtest.Zip(t, files), 0o644))
	return "zip+file://" + path
}

func zipOf(t testing.TB, name, text string) string {
	t.Helper()
	return zipFile(t, fetchtest.Texts(map[string]string{name: text}))
}

func TestCacheOfAnotherUserIsRefused(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(t.TempDir(), link))
	ref := zipOf(t, "a", "x")
	for path, want := range map[string]string{
		file: "is not a directory; remove it, or use another cache directory",
		link: "is not a directory",
	} {
		s, err := New(Config{Dir: path})
		require.NoError(t, err)
		require.Contains(t, refused(t, s, ref), want)
	}
	// The owner comes from the system; the check does not need another user.
	info, err := os.Stat(dir)
	require.NoError(t, err)
	theirs := *info.Sys().(*syscall.Stat_t)
	theirs.Uid++
	require.ErrorContains(t, checkOwner(dir, foreignInfo{info, &theirs}), "belongs to user")
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chown(dir, 12345, -1))
		s, err := New(Config{Dir: dir})
		require.NoError(t, err)
		require.Contains(t, refused(t, s, ref),
			"belongs to user 12345, not to us (user 0); remove it, or use another cache directory")
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, entries, 2, "it is as it was")
	}
}

type foreignInfo struct {
	os.FileInfo
	stat *syscall.Stat_t
}

func (i foreignInfo) Sys() any { return i.stat }

func TestCacheIsPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "cache")
	require.NoError(t, os.MkdirAll(dir, 0o777))
	require.NoError(t, os.Chmod(dir, 0o777))
	s := newStore(t, func(c *Config) { c.Dir = dir })
	get(t, s, zipOf(t, "a", "x"))
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}

func TestStoreThatFetchesNothingMakesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	s, err := New(Config{Dir: dir})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.NoDirExists(t, dir)
	_, err = s.Fetch(t.Context(), reference(t, "zip+file:///x.zip"), Credentials{})
	require.ErrorIs(t, err, ErrClosed)
	_, err = New(Config{MaxBytes: -1})
	require.Error(t, err)
}

func TestDefaultDirIsTheUsers(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", "/home/ci/cache")
	require.Equal(t, "/home/ci/cache/stepmux-steps", component.DefaultDir())
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("HOME", "")
	t.Setenv("TMPDIR", "/t")
	require.Regexp(t, `^/t/stepmux-cache-\d+$`, component.DefaultDir())
}

// change changes a file of a component, as a step of the same user can.
func change(t *testing.T, c *Component, name, text string) {
	t.Helper()
	path := filepath.Join(c.Root, name)
	require.NoError(t, os.Chmod(filepath.Dir(path), 0o755))
	_ = os.Chmod(path, 0o644)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

// remove removes a file of a component, as a step of the same user can.
func remove(t *testing.T, c *Component, name string) {
	t.Helper()
	path := filepath.Join(c.Root, name)
	require.NoError(t, os.Chmod(filepath.Dir(path), 0o755))
	require.NoError(t, os.Remove(path))
}

//stepmux:reliability mechanisms | No step that was changed is run | `remote/step/fetch/verify.go`
func TestComponentThatWasChangedIsFetchedAgain(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, c *Component){
		"other bytes": func(t *testing.T, c *Component) {
			before, err := os.Stat(filepath.Join(c.Root, "a"))
			require.NoError(t, err)
			change(t, c, "a", "yes")
			require.NoError(t, os.Chmod(filepath.Join(c.Root, "a"), 0o444))
			require.NoError(t, os.Chtimes(filepath.Join(c.Root, "a"), before.ModTime(), before.ModTime()))
		},
		"other mode": func(t *testing.T, c *Component) { require.NoError(t, os.Chmod(filepath.Join(c.Root, "a"), 0o555)) },
		"removed":    func(t *testing.T, c *Component) { remove(t, c, "a") },
		"all gone":   func(t *testing.T, c *Component) { require.NoError(t, rmtree.Remove(c.Root)) },
		"a directory for a file": func(t *testing.T, c *Component) {
			remove(t, c, "a")
			require.NoError(t, os.Mkdir(filepath.Join(c.Root, "a"), 0o555))
		},
		"a link for a file": func(t *testing.T, c *Component) {
			remove(t, c, "a")
			require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(c.Root, "a")))
		},
		"its list of files": func(t *testing.T, c *Component) {
			require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(c.Root), metaName), []byte(`{"nodes":[]}`), 0o600))
			require.NoError(t, os.Chmod(filepath.Join(c.Root, "a"), 0o400))
		},
		"no list of files": func(t *testing.T, c *Component) {
			require.NoError(t, os.Remove(filepath.Join(filepath.Dir(c.Root), metaName)))
		},
		"an entry that leads elsewhere": func(t *testing.T, c *Component) {
			entries, err := filepath.Glob(filepath.Join(filepath.Dir(c.Root), "../../index/*"))
			require.NoError(t, err)
			require.Len(t, entries, 1)
			require.NoError(t, os.WriteFile(entries[0], []byte(`{"source":{"tree":"../../../etc"}}`), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			ref := zipOf(t, "a", "all")
			c := get(t, s, ref)
			again := get(t, s, ref)
			require.True(t, again.Cached)
			spoil(t, c)
			c.Release()
			again.Release()
			again = get(t, s, ref)
			require.Equal(t, "all", read(t, again, "a"))
			require.False(t, again.Cached)
			require.True(t, get(t, s, ref).Cached)
			require.Len(t, components(t, s), 1)
		})
	}
}

func TestChangedComponentIsNotReplacedWhileItIsInUse(t *testing.T) {
	s := newStore(t)
	ref := zipOf(t, "a", "all")
	c := get(t, s, ref)
	change(t, c, "a", "not")
	require.Contains(t, refused(t, s, ref), "a step has changed files in "+filepath.Dir(c.Root))
	c.Release()
	require.Equal(t, "all", read(t, get(t, s, ref), "a"))
}

func TestFilesThatAStepAddsToItsDirectoryAreRemoved(t *testing.T) {
	s := newStore(t)
	ref := zipFile(t, fetchtest.Texts(map[string]string{"a": "x", "d/b": "y"}))
	c := get(t, s, ref)
	change(t, c, "a.pyc", "compiled")
	require.NoError(t, os.Chmod(filepath.Join(c.Root, "d"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(c.Root, "d", "__pycache__", "deep"), 0o755))
	change(t, c, "d/__pycache__/deep/b.pyc", "compiled")
	require.NoError(t, os.Chmod(filepath.Join(c.Root, "d", "__pycache__"), 0))
	c.Release()
	again := get(t, s, ref)
	require.True(t, again.Cached)
	require.NoFileExists(t, filepath.Join(again.Root, "a.pyc"))
	require.NoDirExists(t, filepath.Join(again.Root, "d", "__pycache__"))
	require.Equal(t, "y", read(t, again, "d/b"))
}

func TestFilesThatAStepAddsStayWhileOthersUseTheComponent(t *testing.T) {
	all := stores(t, 2)
	ref := zipFile(t, fetchtest.Texts(map[string]string{"a": "x", "d/b": "y"}))
	used := get(t, all[0], ref)
	require.NoError(t, os.Chmod(used.Root, 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(used.Root, "__pycache__"), 0o755))
	change(t, used, "__pycache__/a.pyc", "compiled")
	for range 2 {
		again := get(t, all[1], ref)
		require.Equal(t, "compiled", read(t, again, "__pycache__/a.pyc"))
		again.Release()
	}
	require.NoError(t, os.Chmod(filepath.Join(used.Root, "d"), 0o755))
	require.NoError(t, os.Rename(filepath.Join(used.Root, "d", "b"), filepath.Join(used.Root, "d", "c")))
	require.Contains(t, refused(t, all[1], ref), "a step has changed files in", "what is listed must be there")
	require.NoError(t, os.Rename(filepath.Join(used.Root, "d", "c"), filepath.Join(used.Root, "d", "b")))
	used.Release()
	again := get(t, all[1], ref)
	require.True(t, again.Cached)
	require.NoDirExists(t, filepath.Join(again.Root, "__pycache__"))
	for _, dir := range []string{".", "d"} {
		info, err := os.Stat(filepath.Join(again.Root, dir))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o555), info.Mode().Perm())
	}
}

func TestStepThatAddsFilesDoesNotDisturbConcurrentChecks(t *testing.T) {
	all := stores(t, 3)
	ref := zipOf(t, "step.yml", stepText)
	used := get(t, all[0], ref)
	require.NoError(t, os.Chmod(used.Root, 0o755))
	end, ended := make(chan struct{}), make(chan error, 1)
	dir := filepath.Join(used.Root, "__pycache__")
	add := func() error {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		for i := range 5 {
			tmp := filepath.Join(dir, strconv.Itoa(i))
			if err := os.WriteFile(tmp, []byte("compiled"), 0o600); err != nil {
				return err
			}
			if err := os.Rename(tmp, tmp+".pyc"); err != nil {
				return err
			}
		}
		return os.RemoveAll(dir)
	}
	go func() {
		for {
			select {
			case <-end:
				ended <- nil
				return
			default:
			}
			if err := add(); err != nil {
				ended <- err
				return
			}
		}
	}()
	fetchAll(t, all, ref, 300)
	close(end)
	require.NoError(t, <-ended)
}

func TestFetchWaitsWhileAComponentIsTidied(t *testing.T) {
	s := newStore(t)
	ref := zipOf(t, "a", "x")
	c := get(t, s, ref)
	c.Release()
	meta, err := filelock.ClaimWrite(filepath.Join(filepath.Dir(c.Root), metaName))
	require.NoError(t, err)
	_, err = s.Fetch(shortContext(t, 30*time.Millisecond), reference(t, ref), Credentials{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	time.AfterFunc(30*time.Millisecond, func() { filelock.Release(meta) })
	require.True(t, get(t, s, ref).Cached)
}

// Symptom: a job that locked a file of the cache, which it can open for reading, held the builds that use the step
// until their timeout.
func TestAJobThatLocksFilesOfTheCacheHoldsNoBuild(t *testing.T) {
	ref := zipOf(t, "a", "x")
	for name, lock := range map[string]func(*os.File) error{"flock": filelock.Try, "fcntl": filelock.TryRead} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, func(c *Config) { c.Timeout = patience })
			hold := func(path string) {
				job, err := os.Open(path)
				require.NoError(t, err)
				t.Cleanup(func() { job.Close() })
				require.NoError(t, lock(job))
			}
			c := get(t, s, ref)
			c.Release()
			hold(filepath.Join(filepath.Dir(c.Root), metaName))
			require.True(t, get(t, s, ref).Cached)
			path := s.cache.path(lockDir, "k") // of a fetch that was killed
			require.NoError(t, os.WriteFile(path, nil, 0o600))
			hold(path)
			unlock, err := s.cache.lock(shortContext(t, patience), "k", func() bool { return false })
			require.NoError(t, err)
			unlock()
		})
	}
}

func TestEqualFilesAreOneComponentWhereverTheyCameFrom(t *testing.T) {
	h := newGitHost(t)
	h.echo("c/echo")
	s := newStore(t)
	a := get(t, s, h.URL+"/c/echo@v1")
	b := get(t, s, zipFile(t, fetchtest.Texts(map[string]string{"steps/step.yml": stepText})))
	require.Equal(t, a.Tree, b.Tree)
	require.Equal(t, a.Root, b.Root)
	require.Equal(t, "git", a.Kind)
	require.Equal(t, "zip", b.Kind)
	require.Len(t, components(t, s), 1)
}

func TestCacheKeepsToItsSizeAndKeepsComponentsInUse(t *testing.T) {
	s := newStore(t, func(c *Config) { c.MaxBytes = 4000 })
	text := func(name string) string { return zipOf(t, name, strings.Repeat(name, 1000)) }
	refs := map[string]string{"a": text("a"), "b": text("b"), "c": text("c"), "d": text("d"), "e": text("e")}
	age := func(c *Component, d time.Duration) {
		at := time.Now().Add(-d)
		require.NoError(t, os.Chtimes(filepath.Join(filepath.Dir(c.Root), metaName), at, at))
	}
	used := get(t, s, refs["a"])
	age(used, 3*time.Hour)
	old := get(t, s, refs["b"])
	age(old, 2*time.Hour)
	old.Release()
	young := get(t, s, refs["c"])
	age(young, time.Hour)
	young.Release()
	require.Len(t, components(t, s), 3)
	get(t, s, refs["d"]).Release()
	require.DirExists(t, used.Root, "it is in use")
	require.NoDirExists(t, old.Root)
	require.DirExists(t, young.Root)
	require.False(t, get(t, s, refs["b"]).Cached)

	all := get(t, s, refs["e"])
	require.Equal(t, strings.Repeat("e", 1000), read(t, all, "e"))
	require.Contains(t, refused(t, s, zipOf(t, "f", strings.Repeat("f", 5000))), "size")
}

func TestSeveralProcessesShrinkAndFetchAtOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	refs := make([]string, 6)
	for i := range refs {
		refs[i] = zipOf(t, "step.yml", strings.Repeat("x", 1000+i))
	}
	all := make([]*Store, 4)
	for i := range all {
		all[i] = newStore(t, func(c *Config) { c.Dir, c.MaxBytes = dir, 2500 })
	}
	for round := range 5 {
		for i := range refs {
			fetchAll(t, all, refs[(i+round)%len(refs)], 8)
		}
	}
}

func TestFilesOfDeadProcessesAreSwept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	c, err := openCache(dir, 1<<20)
	require.NoError(t, err)
	mine, err := c.scratch()
	require.NoError(t, err)
	left := c.path(scratchBase, "left")
	require.NoError(t, os.MkdirAll(filepath.Join(left, "a", "b"), 0o700))
	require.NoError(t, os.Chmod(filepath.Join(left, "a"), 0o500))
	_, err = openCache(dir, 1<<20)
	require.NoError(t, err)
	require.NoDirExists(t, left)
	require.DirExists(t, mine.path, "a process has it")
	mine.remove()
}

// deepTree makes nested directories below dir, deeper than a path can tell, and returns the path of the last.
func deepTree(t *testing.T, dir string) string {
	t.Helper()
	const levels = 1000
	name := strings.Repeat("d", 20)
	at, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	for range levels {
		require.NoError(t, unix.Mkdirat(at, name, 0o700))
		next, err := unix.Openat(at, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Fchmod(at, 0o555))
		require.NoError(t, unix.Close(at))
		at = next
	}
	require.NoError(t, unix.Close(at))
	return strings.TrimSuffix(strings.Repeat(name+"/", levels), "/")
}

// Symptom: an earlier version accepted archives of any depth, and could neither use nor remove such a component.
func TestDeepTreesOfTheCacheAreRemoved(t *testing.T) {
	s := newStore(t)
	ref := zipOf(t, "step.yml", stepText)
	get(t, s, ref).Release()
	cache, err := s.open()
	require.NoError(t, err)
	left := cache.path(scratchBase, "left")
	require.NoError(t, os.Mkdir(left, 0o700))
	deepTree(t, left)
	_, err = openCache(s.cfg.Dir, 1<<20)
	require.NoError(t, err)
	require.NoDirExists(t, left)

	deep := keep(t, cache, func(tree string) []node {
		return []node{{Path: deepTree(t, tree), Mode: modeDir, SHA256: emptySum}}
	})
	again := get(t, s, ref)
	require.False(t, again.Cached)
	require.Equal(t, stepText, read(t, again, "step.yml"))
	require.NoDirExists(t, cache.path(compDir, deep))
}

// keep puts a component into the cache that fill writes, in the place of the only one there, and returns its name.
func keep(t *testing.T, cache *cache, fill func(tree string) []node) string {
	t.Helper()
	made := filepath.Join(t.TempDir(), compDir)
	require.NoError(t, os.MkdirAll(filepath.Join(made, treeName), 0o700))
	nodes := fill(filepath.Join(made, treeName))
	require.NoError(t, os.Chmod(filepath.Join(made, treeName), 0o555))
	name := component.Digest(nodes)
	data, err := json.Marshal(meta{nodes})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(made, metaName), data, 0o600))
	require.NoError(t, os.Rename(made, cache.path(compDir, name)))
	entries, err := os.ReadDir(cache.path(indexDir))
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.NoError(t, cache.write(indexDir, entries[0].Name(), entry{Source: Source{Kind: kindZip, Tree: name}}))
	return name
}

func TestFullDiskIsToldAndLeavesNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("part missing: this test mounts a file system, which only root can")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("part missing: mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, 0)) })
	h := newGitHost(t)
	texts := map[string]string{}
	random := rand.NewChaCha8([32]byte{})
	for i := range 20 {
		noise := make([]byte, 100<<10)
		_, _ = random.Read(noise)
		texts[strconv.Itoa(i)] = string(noise)
	}
	commit := h.repository("c/large").Commit("main", fetchtest.Texts(texts))
	s := newStore(t, func(c *Config) { c.Dir = filepath.Join(dir, "cache") })
	for _, ref := range []string{h.URL + "/c/large@" + commit, zipFile(t, fetchtest.Texts(texts))} {
		require.Contains(t, strings.ToLower(refused(t, s, ref)), "no space left on device (free space or inodes")
	}
	require.Empty(t, components(t, s))
	c, err := s.Fetch(t.Context(), reference(t, zipOf(t, "a", "small")), Credentials{})
	require.NoError(t, err)
	require.Equal(t, "small", read(t, c, "a"))
	c.Release()
}

func TestErrorsOfTheDiskHaveARemedy(t *testing.T) {
	for _, cause := range []error{
		syscall.ENOSPC, syscall.EDQUOT,
		errors.New("git fetch: write: No space left on device"),
	} {
		require.ErrorContains(t, hint(cause, "/c"),
			"(free space or inodes on the file system of /c, or use another cache directory)")
	}
	require.ErrorContains(t, hint(&os.PathError{Op: "open", Path: "/c/x", Err: syscall.EACCES}, "/c"),
		"must be able to write in /c")
	require.NoError(t, hint(nil, "/c"))
	require.Equal(t, context.Canceled, hint(context.Canceled, "/c"))
}
