package job

import (
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// patience is a grace that no test uses up.
const patience = 30 * time.Second

// newStore returns a store that is closed, and has left nothing, at the end of the test.
func newStore(t testing.TB, cfg Config) *Store {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	s, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoDirExists(t, filepath.Join(cfg.Dir, "jobs"))
		require.NoDirExists(t, filepath.Join(cfg.Dir, "kept"))
	})
	return s
}

// script is a job that runs text. Its digest is that of the text.
func script(t testing.TB, id, text string) Spec {
	t.Helper()
	def, err := lang.Script("script", text)
	require.NoError(t, err)
	return Spec{ID: id, Digest: sha256.Sum256([]byte(text)), Config: engine.Config{Definition: def}}
}

// yaml is a job with the steps in text.
func yaml(t testing.TB, id, text string) Spec {
	t.Helper()
	def, err := lang.Parse("job.yml", []byte(text))
	require.NoError(t, err)
	return Spec{ID: id, Digest: sha256.Sum256([]byte(text)), Config: engine.Config{Definition: def}}
}

// follow returns a Follower that is closed with the test.
func follow(t testing.TB, s *Store, id string) *Follower {
	t.Helper()
	f, err := s.Follow(id)
	require.NoError(t, err)
	t.Cleanup(f.Close)
	return f
}

// run runs a job to its end.
func run(t testing.TB, s *Store, spec Spec) (Stat, engine.Result) {
	t.Helper()
	require.NoError(t, s.Create(spec))
	f, err := s.Follow(spec.ID)
	require.NoError(t, err)
	defer f.Close() // one that stays would keep the files of a removed job
	stat, result, err := f.Wait(t.Context())
	require.NoError(t, err)
	return stat, result
}

// read returns the bytes of a stream from offset to its end.
func read(t testing.TB, f *Follower, stream Stream, offset int64) string {
	t.Helper()
	var all []byte
	buf := make([]byte, 1000)
	for {
		n, err := f.ReadAt(t.Context(), stream, buf, offset+int64(len(all)))
		all = append(all, buf[:n]...)
		if errors.Is(err, io.EOF) {
			return string(all)
		}
		require.NoError(t, err)
	}
}

// awaitOutput waits for the first output on stdout.
func awaitOutput(t testing.TB, f *Follower) string {
	t.Helper()
	buf := make([]byte, 1000)
	n, err := f.ReadAt(t.Context(), Stdout, buf, 0)
	require.NoError(t, err)
	return string(buf[:n])
}

// left returns the paths of all that is in the directory of s.
func left(t testing.TB, s *Store) (paths []string) {
	t.Helper()
	base := filepath.Dir(s.dir)
	require.NoError(t, filepath.WalkDir(base, func(path string, _ fs.DirEntry, err error) error {
		if path != base {
			paths = append(paths, strings.TrimPrefix(path, base+"/"))
		}
		return err
	}))
	return paths
}

// dirs returns the directories of jobs that s has.
func dirs(t testing.TB, s *Store) []string {
	t.Helper()
	entries, err := os.ReadDir(s.dir)
	require.NoError(t, err)
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
