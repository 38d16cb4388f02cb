package contents

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// keep returns a store with one file, and the digest of that.
func keep(t *testing.T, text string) (s *Store, digest string) {
	t.Helper()
	s, digest = &Store{Dir: t.TempDir()}, fmt.Sprintf("%x", sha256.Sum256([]byte(text)))
	u, err := s.Begin(digest, int64(len(text)))
	require.NoError(t, err)
	_, err = u.Write([]byte(text))
	require.NoError(t, err)
	file, err := s.Keep(u)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	return s, digest
}

// Symptom: a caller that named the project of a queued build with another size removed it.
func TestAFileIsKeptWhenACallerIsWrongAboutItsSize(t *testing.T) {
	s, digest := keep(t, "text")
	for _, size := range []int64{1, 1 << 30} {
		file, err := s.Find(digest, size)
		require.NoError(t, err)
		require.Nil(t, file)
	}
	file, err := s.Find(digest, 4)
	require.NoError(t, err)
	require.NotNil(t, file)
	require.NoError(t, file.Close())

	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, digest), []byte("cut"), 0o600))
	file, err = s.Find(digest, 3)
	require.NoError(t, err)
	require.Nil(t, file)
	require.NoFileExists(t, filepath.Join(s.Dir, digest))
}

// Symptom: a manager that had too many open files removed the projects of queued builds.
func TestAFileIsKeptWhenThereAreTooManyOpenFiles(t *testing.T) {
	s, digest := keep(t, "text")
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}))
	_, err := s.Find(digest, 4)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	require.ErrorIs(t, err, unix.EMFILE)
	require.FileExists(t, filepath.Join(s.Dir, digest))
}
