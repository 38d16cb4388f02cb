package firstuse

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newKey returns a different key for each n.
func newKey(t testing.TB, n int) ssh.PublicKey {
	t.Helper()
	seed := make([]byte, ed25519.SeedSize)
	binary.LittleEndian.PutUint64(seed, uint64(n))
	key, err := ssh.NewPublicKey(ed25519.NewKeyFromSeed(seed).Public())
	require.NoError(t, err)
	return key
}

func open(t testing.TB) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "state", "keys"))
	require.NoError(t, err)
	return s
}

func keep(t testing.TB, s *Store, id string, key ssh.PublicKey) ssh.PublicKey {
	t.Helper()
	kept, err := s.Keep(t.Context(), id, key)
	require.NoError(t, err)
	return kept
}

// text returns the file's content.
func text(t testing.TB, s *Store) string {
	t.Helper()
	data, err := os.ReadFile(s.path)
	require.NoError(t, err)
	return string(data)
}

func TestTheFirstKeyOfAMachineIsKept(t *testing.T) {
	s := open(t)
	first, second := newKey(t, 1), newKey(t, 2)
	key, err := s.Key("i-1")
	require.NoError(t, err)
	require.Nil(t, key)
	require.Equal(t, first, keep(t, s, "i-1", first))
	require.Equal(t, first.Marshal(), keep(t, s, "i-1", second).Marshal(), "a later key changes nothing")
	require.Equal(t, second, keep(t, s, "i-2", second), "another machine has its own")

	again, err := Open(s.path)
	require.NoError(t, err)
	key, err = again.Key("i-1")
	require.NoError(t, err)
	require.Equal(t, first.Marshal(), key.Marshal())
}

func TestForgottenMachinesLeaveNothing(t *testing.T) {
	s := open(t)
	keep(t, s, "i-1", newKey(t, 1))
	keep(t, s, "i-2", newKey(t, 2))
	keep(t, s, "i-3", newKey(t, 3))
	require.NoError(t, s.Forget(t.Context(), "i-1", "i-3", "never known"))
	require.Equal(t, 1, strings.Count(text(t, s), "\n"))
	require.Contains(t, text(t, s), "i-2 ")
	require.Equal(t, newKey(t, 4), keep(t, s, "i-1", newKey(t, 4)))
}

// OpenSSH and other readers of known_hosts find a machine by its identity.
func TestTheFileIsAKnownHostsFile(t *testing.T) {
	s := open(t)
	for i, id := range []string{"i-1", "10.0.0.1:22", "zone/a,b c", "*", "@revoked", "|1|x", "ümlaut"} {
		keep(t, s, id, newKey(t, i))
		key, err := s.Key(id)
		require.NoError(t, err)
		require.Equal(t, newKey(t, i).Marshal(), key.Marshal(), id)
	}
	check, err := knownhosts.New(s.path)
	require.NoError(t, err)
	require.NoError(t, check("i-1:22", &nowhere{}, newKey(t, 0)))
	require.Error(t, check("i-1:22", &nowhere{}, newKey(t, 1)))
	require.Error(t, check("other:22", &nowhere{}, newKey(t, 3)), "an identity is no pattern")
}

type nowhere struct{}

func (*nowhere) Network() string { return "tcp" }
func (*nowhere) String() string  { return "0.0.0.0:0" }

func TestTheFileIsPrivateAndLeavesNoTemporaryFiles(t *testing.T) {
	s := open(t)
	keep(t, s, "i-1", newKey(t, 1))
	info, err := os.Stat(s.path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	entries, err := os.ReadDir(filepath.Dir(s.path))
	require.NoError(t, err)
	require.Len(t, entries, 2, "the file and its lock")
}

func TestManyStoresOfOneFileLoseNothing(t *testing.T) {
	path := open(t).path
	var wg sync.WaitGroup
	for m := range 8 {
		s, err := Open(path)
		require.NoError(t, err)
		wg.Go(func() {
			for i := range 10 {
				id := fmt.Sprintf("i-%d-%d", m, i)
				_, err := s.Keep(t.Context(), id, newKey(t, m))
				if err == nil {
					_, err = s.Keep(t.Context(), "shared", newKey(t, m))
				}
				if err == nil && i%2 == 0 {
					err = s.Forget(t.Context(), id)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	s, err := Open(path)
	require.NoError(t, err)
	all, err := s.read()
	require.NoError(t, err)
	require.Len(t, all, 8*5+1)
}

func TestMachinesGoneForLongAreForgotten(t *testing.T) {
	s := open(t)
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	s.now = func() time.Time { return now }
	keep(t, s, "gone", newKey(t, 1))
	keep(t, s, "stays", newKey(t, 2))
	for range 4 {
		now = now.Add(30 * 24 * time.Hour)
		require.Equal(t, newKey(t, 2).Marshal(), keep(t, s, "stays", newKey(t, 2)).Marshal())
	}
	require.Equal(t, 1, strings.Count(text(t, s), "\n"), text(t, s))
	require.Contains(t, text(t, s), "stays ")
}

func TestTheFileIsBoundedOverAnyNumberOfMachines(t *testing.T) {
	s := open(t)
	s.limit = 20
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	s.now = func() time.Time { return now }
	for i := range 100 {
		now = now.Add(12 * time.Hour)
		keep(t, s, fmt.Sprintf("i-%d", i), newKey(t, i))
		require.Equal(t, newKey(t, 1000), keep(t, s, "in use", newKey(t, 1000)), "a machine in use is not forgotten")
	}
	require.Equal(t, 20, strings.Count(text(t, s), "\n"))
	require.Contains(t, text(t, s), "i-99 ")
}

func TestKeepDoesNotWriteAKnownKey(t *testing.T) {
	s := open(t)
	keep(t, s, "i-1", newKey(t, 1))
	before, err := os.Stat(s.path)
	require.NoError(t, err)
	keep(t, s, "i-1", newKey(t, 1))
	after, err := os.Stat(s.path)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after))
}

func TestFilesThatAreNoStoreAreRefused(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(filepath.Join(dir, "target"), link))
	write := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), mode))
		require.NoError(t, os.Chmod(path, mode))
		return path
	}
	good := entry{id: "i-1", key: newKey(t, 1)}.line()
	for path, want := range map[string]string{
		dir:                                      "is a directory",
		fifo:                                     "",
		link:                                     "", // says "too many levels of symbolic links"
		write("garbage", good+"nonsense", 0o600): "line 2: ",
		write("short", "i-1 ssh-ed25519", 0o600): "line 1: ",
		write("pattern", "*"+good, 0o600):        "not of the form",
		write("marker", "@revoked "+good, 0o600): "not of the form",
		write("open", good, 0o666):               "others may write",
		write("file", "", 0o600) + "/below/a/file": "not a directory",
	} {
		_, err := Open(path)
		require.ErrorContains(t, err, want)
	}
	if os.Getuid() == 0 {
		path := write("theirs", good, 0o600)
		require.NoError(t, os.Chown(path, 12345, 12345))
		_, err := Open(path)
		require.ErrorContains(t, err, "belongs to another user")
	}
	_, err := os.Stat(filepath.Join(dir, "target"))
	require.ErrorIs(t, err, os.ErrNotExist, "nothing is made through a link")
}

// Symptom: a check of a configuration made the file and its directory.
func TestOpenMakesNothingAndTellsWhatKeepCannot(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(filepath.Join(dir, "a", "b", "keys"))
	require.NoError(t, err)
	require.NoDirExists(t, filepath.Join(dir, "a"))
	key, err := s.Key("i-1")
	require.NoError(t, err)
	require.Nil(t, key)
	require.NoError(t, s.Forget(t.Context(), "i-1"))
	keep(t, s, "i-1", newKey(t, 1))
	require.Contains(t, text(t, s), "i-1 ")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	_, err = Open(filepath.Join(dir, "file", "keys"))
	require.ErrorContains(t, err, "not a directory")
}

func TestLineWrittenByHandCounts(t *testing.T) {
	s := open(t)
	line, _, _ := bytes.Cut([]byte(entry{id: "i-1", key: newKey(t, 1)}.line()), []byte(" last-used"))
	require.NoError(t, os.Mkdir(filepath.Dir(s.path), 0o700))
	require.NoError(t, os.WriteFile(s.path, append([]byte("# by hand\n\n"), line...), 0o600))
	require.Equal(t, newKey(t, 1).Marshal(), keep(t, s, "i-1", newKey(t, 2)).Marshal())
	keep(t, s, "i-2", newKey(t, 3))
	require.Equal(
		t, newKey(t, 1).Marshal(), keep(t, s, "i-1", newKey(t, 2)).Marshal(), "also after the file was written anew",
	)
}

func TestWaitForAnotherWriterEndsWithTheContext(t *testing.T) {
	s := open(t)
	require.NoError(t, os.Mkdir(filepath.Dir(s.path), 0o700))
	unlock, err := s.lock(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	because := errors.New("because")
	cancel(because)
	_, err = s.Keep(ctx, "i-1", newKey(t, 1))
	require.ErrorIs(t, err, because)
	require.ErrorContains(t, err, "held by another process")
	unlock()
	keep(t, s, "i-1", newKey(t, 1))
}

func TestInvalidIdentitiesAreRefused(t *testing.T) {
	s := open(t)
	for _, id := range []string{"", strings.Repeat("x", 1000)} {
		_, err := s.Key(id)
		require.Error(t, err)
		_, err = s.Keep(t.Context(), id, newKey(t, 1))
		require.Error(t, err)
		require.Error(t, s.Forget(t.Context(), id))
	}
}

func FuzzAnyIdentityIsFoundAgain(f *testing.F) {
	f.Add("i-1")
	f.Add("a b,c\n# *")
	f.Fuzz(func(t *testing.T, id string) {
		escaped, err := escape(id)
		if err != nil {
			return
		}
		e := entry{id: escaped, key: newKey(t, 1), used: time.Date(2026, 2, 3, 0, 0, 0, 0, time.UTC)}
		all, err := parse([]byte(e.line()))
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.Equal(t, e.line(), all[0].line())
	})
}
