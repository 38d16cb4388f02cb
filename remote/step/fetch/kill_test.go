package fetch

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	"github.com/stepmux/stepmux/remote/step/lang"
)

var (
	kills = flag.Int("kills", 0,
		"how often TestCacheIsRightAfterKills kills what fetches; 0 for 40 times, or as often as it can in 15 s")
	killSeed = flag.Uint64("killseed", 1, "where the random numbers of TestCacheIsRightAfterKills begin")
)

// fetchRole fetches the references in its arguments into the cache named by its first argument.
func fetchRole() int {
	s, err := New(Config{Dir: os.Args[1]})
	if err != nil {
		return 1
	}
	for _, text := range os.Args[2:] {
		ref, err := lang.ParseReference(text)
		if err != nil {
			return 1
		}
		c, err := s.Fetch(context.Background(), ref, Credentials{})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		c.Release()
	}
	return 0
}

// fetchCommand is a process that fetches.
func fetchCommand(t *testing.T, dir string, refs ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{dir}, refs...)...)
	cmd.Env = append(os.Environ(), roleVar+"=fetch")
	return cmd
}

// A process is killed at random points while it fetches from a repository and an archive. Its remains do not harm
// the next process, which fetches both and removes the remains. The flag -kills=200 repeats it more
// often.
func TestCacheIsRightAfterKills(t *testing.T) {
	h := newGitHost(t)
	texts := map[string]string{"steps/step.yml": stepText}
	for i := range 50 {
		texts[fmt.Sprintf("data/%d", i)] = strings.Repeat(fmt.Sprint(i), 200)
	}
	commit := h.repository("c/echo").Commit("main", fetchtest.Texts(texts))
	archive := newZipHost(t, fetchtest.Zip(t, fetchtest.Texts(texts)))
	refs := []string{h.URL + "/c/echo@main", h.URL + "/c/echo@" + commit, "zip+" + archive.URL + "/s.zip"}

	whole := time.Now()
	require.NoError(t, fetchCommand(t, filepath.Join(fetchtest.CacheDir(t), "cache"), refs...).Run())
	took := time.Since(whole)

	random := rand.New(rand.NewPCG(*killSeed, 0))
	dir := filepath.Join(fetchtest.CacheDir(t), "cache")
	n, started := *kills, time.Now()
	if n == 0 {
		n = 40
	}
	for i := range n {
		if *kills == 0 && time.Since(started) > 15*time.Second {
			break
		}
		if i%4 == 0 { // an empty cache
			require.NoError(t, rmtree.Remove(dir))
		}
		cmd := fetchCommand(t, dir, refs...)
		require.NoError(t, cmd.Start())
		timer := time.NewTimer(time.Duration(random.Int64N(int64(took))))
		<-timer.C
		require.NoError(t, cmd.Process.Signal(unix.SIGKILL))
		_ = cmd.Wait()
	}
	checkAfterKills(t, dir, refs, texts)
}

// checkAfterKills fetches from the cache in dir, which is tidy then. Children of a killed git may take a moment to end.
func checkAfterKills(t *testing.T, dir string, refs []string, texts map[string]string) {
	t.Helper()
	s, err := New(Config{Dir: dir})
	require.NoError(t, err)
	for _, ref := range refs {
		c := get(t, s, ref)
		for name, text := range texts {
			require.Equal(t, text, read(t, c, name))
		}
	}
	entries, err := os.ReadDir(filepath.Join(dir, layout, compDir))
	require.NoError(t, err)
	require.Len(t, entries, 1, "both have equal files")
	cache, err := s.open()
	require.NoError(t, err)
	nodes, err := cache.nodes(entries[0].Name())
	require.NoError(t, err)
	require.NoError(t, compare(t.Context(), cache.path(compDir, entries[0].Name(), treeName), nodes))
	require.NoError(t, pause.Until(shortContext(t, patience), func() (bool, error) {
		require.NoError(t, cache.sweep())
		left, err := os.ReadDir(filepath.Join(dir, layout, scratchBase))
		return len(left) == 0, err
	}))
	require.NoError(t, s.Close())
}
