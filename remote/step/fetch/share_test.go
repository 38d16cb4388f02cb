package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
)

// fetchAll fetches a reference n times at once by several stores, as several builds do.
func fetchAll(t *testing.T, stores []*Store, text string, n int, logins ...Login) {
	t.Helper()
	ref := reference(t, text)
	var all errgroup.Group
	for i := range n {
		all.Go(func() error {
			c, err := stores[i%len(stores)].Fetch(t.Context(), ref, Credentials{Logins: logins})
			if err != nil {
				return err
			}
			defer c.Release()
			_, err = os.Stat(filepath.Join(c.Dir, "step.yml"))
			return err
		})
	}
	require.NoError(t, all.Wait())
}

// stores returns n stores with one cache.
func stores(t *testing.T, n int) []*Store {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "cache")
	all := make([]*Store, n)
	for i := range all {
		all[i] = newStore(t, func(c *Config) { c.Dir = dir })
	}
	return all
}

func TestManyJobsFetchOnce(t *testing.T) {
	h := newGitHost(t)
	commit := h.echo("c/echo")
	all := stores(t, 8)
	fetchAll(t, all, h.URL+"/c/echo@v1", 200)
	require.Equal(t, 1, h.Fetches())
	require.Less(t, h.Questions(), 100, "jobs that began before a question share its answer")
	require.Len(t, components(t, all[0]), 1)
	asked := h.Questions()
	fetchAll(t, all, h.URL+"/c/echo@"+commit, 200)
	require.Equal(t, asked, h.Questions())
	require.Equal(t, 1, h.Fetches())
}

func TestManyJobsFetchAPrivateComponentOnce(t *testing.T) {
	h := newGitHost(t)
	h.echo("c/echo")
	login := h.private()
	fetchAll(t, stores(t, 8), h.URL+"/c/echo@v1", 50, login)
	require.Equal(t, 1, h.Fetches())
}

// slowHost does not answer before it is released.
func slowHost(t *testing.T) (h *gitHost, asked <-chan struct{}, letGo func()) {
	t.Helper()
	h = newGitHost(t)
	h.echo("c/echo")
	first, gone := make(chan struct{}), make(chan struct{})
	var once, end sync.Once
	h.Before = func(_ http.ResponseWriter, r *http.Request) bool {
		once.Do(func() { close(first) })
		select {
		case <-gone:
		case <-r.Context().Done():
		}
		return false
	}
	letGo = func() { end.Do(func() { close(gone) }) }
	t.Cleanup(letGo)
	return h, first, letGo
}

//stepmux:faults fetch | One slow host delays the steps of every other job
func TestSlowHostDelaysNoOtherJob(t *testing.T) {
	slow, asked, letGo := slowHost(t)
	fast := newGitHost(t)
	fast.echo("c/echo")
	s := newStore(t)
	done := make(chan error, 1)
	go func() {
		c, err := s.Fetch(t.Context(), reference(t, slow.URL+"/c/echo@v1"), Credentials{})
		if err == nil {
			c.Release()
		}
		done <- err
	}()
	<-asked
	for i := range 5 {
		fast.echo(fmt.Sprintf("c/more%d", i))
		get(t, s, fmt.Sprintf("%s/c/more%d@v1", fast.URL, i))
	}
	select {
	case err := <-done:
		t.Fatal("the slow host has answered: ", err)
	default:
	}
	letGo()
	require.NoError(t, <-done)
}

func TestFetchEndsWithItsContextAndAnotherGoesOn(t *testing.T) {
	slow, asked, letGo := slowHost(t)
	s := newStore(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	fetch := func(ctx context.Context, done chan error) {
		c, err := s.Fetch(ctx, reference(t, slow.URL+"/c/echo@v1"), Credentials{})
		if err == nil {
			c.Release()
		}
		done <- err
	}
	go fetch(ctx, first)
	<-asked
	go fetch(t.Context(), second)
	cause := errors.New("the job was stopped")
	cancel(cause)
	require.ErrorIs(t, <-first, cause)
	letGo()
	require.NoError(t, <-second)
	require.Equal(t, 1, slow.Fetches())
}

func TestGitEndsWithTheContext(t *testing.T) {
	h := newGitHost(t)
	commit := h.echo("c/echo")
	posted := make(chan struct{})
	var once sync.Once
	h.Before = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost {
			_, _ = io.Copy(io.Discard, r.Body) // otherwise the server does not notice that the client is gone
			once.Do(func() { close(posted) })
			<-r.Context().Done()
		}
		return false
	}
	s := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-posted
		cancel()
	}()
	_, err := s.Fetch(ctx, reference(t, h.URL+"/c/echo@"+commit), Credentials{})
	require.ErrorIs(t, err, context.Canceled)
}

func TestFetchHasATimeLimit(t *testing.T) {
	slow, _, _ := slowHost(t)
	s := newStore(t, func(c *Config) { c.Timeout = 50 * time.Millisecond })
	require.Equal(t, "timeout: the fetch took longer than 50ms", refused(t, s, slow.URL+"/c/echo@v1"))
}

func TestServerThatFailsIsAskedAgain(t *testing.T) {
	h := newGitHost(t)
	h.echo("c/echo")
	var failing atomic.Bool
	failing.Store(true)
	h.Before = func(w http.ResponseWriter, r *http.Request) bool {
		if failing.Load() && r.Method == http.MethodPost {
			http.Error(w, "\x1b[31mno", http.StatusInternalServerError)
			return true
		}
		return false
	}
	s := newStore(t)
	message := refused(t, s, h.URL+"/c/echo@v1")
	require.Contains(t, message, "git ls-remote: ")
	require.Contains(t, message, "500")
	failing.Store(false)
	get(t, s, h.URL+"/c/echo@v1")
}

func TestProcessWaitsForTheLockOfAnother(t *testing.T) {
	c, err := openCache(filepath.Join(t.TempDir(), "cache"), 1<<20)
	require.NoError(t, err)
	never := func() bool { return false }
	unlock, err := c.lock(t.Context(), "k", never)
	require.NoError(t, err)
	ctx := shortContext(t, 30*time.Millisecond)
	_, err = c.lock(ctx, "k", never)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	other, err := c.lock(t.Context(), "another", never)
	require.NoError(t, err)
	other()

	calls := 0
	none, err := c.lock(t.Context(), "k", func() bool { calls++; return calls > 2 })
	require.NoError(t, err)
	require.Nil(t, none, "what it waits for is there")

	const n = 20
	inside, most, entered := 0, 0, 0
	var all errgroup.Group
	var mu sync.Mutex
	for range n {
		all.Go(func() error {
			unlock, err := c.lock(t.Context(), "k", never)
			if err != nil {
				return err
			}
			mu.Lock()
			inside++
			entered++
			most = max(most, inside)
			mu.Unlock()
			mu.Lock()
			inside--
			mu.Unlock()
			unlock()
			return nil
		})
	}
	unlock()
	require.NoError(t, all.Wait())
	require.Equal(t, 1, most)
	require.Equal(t, n, entered)
	entries, err := os.ReadDir(c.path(lockDir))
	require.NoError(t, err)
	require.Empty(t, entries)
}

func BenchmarkCached(b *testing.B) {
	for _, files := range []int{1, 100} {
		b.Run(fmt.Sprintf("files=%d", files), func(b *testing.B) {
			h := newGitHost(b)
			texts := map[string]string{"steps/step.yml": stepText}
			for i := range files - 1 {
				texts[fmt.Sprintf("steps/f%d", i)] = "x"
			}
			commit := h.repository("c/echo").Commit("main", fetchtest.Texts(texts))
			s := newStore(b)
			ref := reference(b, h.URL+"/c/echo@"+commit)
			b.ReportAllocs()
			for b.Loop() {
				c, err := s.Fetch(b.Context(), ref, Credentials{})
				if err != nil {
					b.Fatal(err)
				}
				c.Release()
			}
		})
	}
}

func TestPathOfAnIsolatedFetchHasNoDirectoryOfItsUser(t *testing.T) {
	if os.Geteuid() == 0 {
		require.Equal(t, "/x:/y", safePath("/x:/y"))
		t.Skip("part missing: an ordinary user, who cannot change all directories")
	}
	own := t.TempDir()
	require.NoError(t, os.Symlink("/usr/bin", filepath.Join(own, "link")))
	require.Equal(t, "/usr/bin:/usr/bin", safePath(own+":"+own+"/link::relative:/tmp:/missing:/usr/bin"))
}
