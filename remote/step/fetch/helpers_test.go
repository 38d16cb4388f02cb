package fetch

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// patience is the deadline of waits for events that must happen. No passing test takes that long.
const patience = 3 * time.Minute

const stepText = "spec: {}\n---\nexec: {command: [echo, x]}\n"

// newStore returns a store with a cache of its own. At the end no scratch directory may be left.
func newStore(t testing.TB, change ...func(*Config)) *Store {
	t.Helper()
	cfg := Config{Dir: filepath.Join(t.TempDir(), "cache")}
	for _, c := range change {
		c(&cfg)
	}
	s, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		requireTidy(t, cfg.Dir)
		require.NoError(t, rmtree.Remove(cfg.Dir)) // an ordinary user could not by os.RemoveAll
	})
	return s
}

// requireTidy requires that a cache has no scratch directories and no locks.
func requireTidy(t testing.TB, dir string) {
	t.Helper()
	for _, name := range []string{scratchBase, lockDir} {
		entries, err := os.ReadDir(filepath.Join(dir, layout, name))
		if !os.IsNotExist(err) {
			require.NoError(t, err)
		}
		require.Empty(t, entries, name)
	}
}

// components returns the names of the components in a cache.
func components(t testing.TB, s *Store) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(s.cfg.Dir, layout, compDir))
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// reference parses a reference.
func reference(t testing.TB, text string) *pb.Reference {
	t.Helper()
	ref, err := lang.ParseReference(text)
	require.NoError(t, err)
	return ref
}

// get fetches a reference, and releases the component at the end of the test.
func get(t testing.TB, s *Store, text string, logins ...Login) *Component {
	t.Helper()
	c, err := s.Fetch(t.Context(), reference(t, text), Credentials{Logins: logins})
	require.NoError(t, err)
	t.Cleanup(c.Release)
	return c
}

// refused requires that the fetch of a reference fails, and returns the error.
func refused(t testing.TB, s *Store, text string, logins ...Login) string {
	t.Helper()
	c, err := s.Fetch(t.Context(), reference(t, text), Credentials{Logins: logins})
	if err == nil {
		c.Release()
	}
	require.Error(t, err)
	return err.Error()
}

// read returns a file of a component.
func read(t testing.TB, c *Component, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(c.Root, name))
	require.NoError(t, err)
	return string(data)
}

// gitHost is a server of repositories and their directory.
type gitHost struct {
	*fetchtest.GitServer
	root string
	t    testing.TB
}

func newGitHost(t testing.TB) *gitHost {
	t.Helper()
	root := t.TempDir()
	return &gitHost{fetchtest.ServeGit(t, root), root, t}
}

// repository makes a repository that is served as name.
func (h *gitHost) repository(name string, args ...string) *fetchtest.Repository {
	h.t.Helper()
	return fetchtest.NewRepository(h.t, filepath.Join(h.root, name), args...)
}

// echo makes a repository with a step, tagged v1, and returns the commit.
func (h *gitHost) echo(name string) string {
	h.t.Helper()
	r := h.repository(name)
	commit := r.Commit("main", fetchtest.Texts(map[string]string{"steps/step.yml": stepText}))
	r.Git("tag", "v1", commit)
	return commit
}

// contains reports whether a file below dir contains text.
func contains(t testing.TB, dir, text string) bool {
	t.Helper()
	found := false
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		var data []byte
		if err == nil && d.Type().IsRegular() {
			data, err = os.ReadFile(path)
			found = found || strings.Contains(string(data), text) || strings.Contains(path, text)
		}
		if path != dir && errors.Is(err, fs.ErrNotExist) {
			return nil // git is at work, and has removed it in the meantime
		}
		return err
	})
	assert.NoError(t, err) // the caller may be a handler, which may not end the test
	return found
}

func shortContext(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// emptySum is the digest of no bytes.
var emptySum = component.EmptyDir("").SHA256

func loginAt(server, user, password string) Login {
	return Login{Server: server, User: user, Password: password}
}
