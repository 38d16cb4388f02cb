package inventory_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/inventory"
)

// watched is an inventory under watch, in a synctest bubble.
type watched struct {
	*inventory.File
	path string
	log  bytes.Buffer

	mu   sync.Mutex // guards the following
	sets []string   // the IDs of each set
	err  error      // what update returns
}

func watch(t *testing.T, text string) *watched {
	t.Helper()
	w := &watched{path: filepath.Join(t.TempDir(), "fleet.yml")}
	w.write(t, text)
	var err error
	w.File, err = inventory.Open(t.Context(), inventory.Config{
		Path:     w.path,
		Fallback: fallback(t),
		Logger:   slog.New(slog.NewTextHandler(&w.log, nil)),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Watch(ctx, w.update) }()
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
	synctest.Wait()
	return w
}

func (w *watched) update(all []instance.Instance) error {
	var ids []string
	for _, in := range all {
		ids = append(ids, in.ID)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sets = append(w.sets, strings.Join(ids, " "))
	return w.err
}

// seen returns the sets so far.
func (w *watched) seen() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.sets)
}

// write replaces the file, as editors do.
func (w *watched) write(t *testing.T, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(w.path+".new", []byte(text), 0o600))
	require.NoError(t, os.Rename(w.path+".new", w.path))
}

// pass lets n looks pass.
func pass(n int) {
	//nolint:forbidigo // in a synctest bubble time does not pass otherwise
	time.Sleep(time.Duration(n)*time.Second + time.Millisecond)
	synctest.Wait()
}

const (
	one = "instances: [{id: a, address: x}]"
	two = "instances: [{id: a, address: x}, {id: b, address: y}]"
)

func TestAFileThatChangesIsReadAgainOnceItStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, one)
		pass(3)
		require.Equal(t, []string{"a"}, w.seen())
		w.write(t, two)
		pass(1)
		require.Equal(t, []string{"a"}, w.seen(), "it may yet be written to")
		pass(1)
		require.Equal(t, []string{"a", "a b"}, w.seen())
		pass(5)
		require.Len(t, w.seen(), 2)
	})
}

func TestAReloadWithAMistakeLeavesTheOldSetInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, one)
		w.write(t, "instances:\n  - {id: a, addresss: x}")
		pass(10)
		require.Equal(t, []string{"a"}, w.seen())
		require.Len(t, w.Instances(), 1)
		require.ErrorContains(t, w.Err(), `fleet.yml:2:13: unknown key "addresss", did you mean "address"?`)
		require.Equal(t, 1, strings.Count(w.log.String(), "the one before stays in force"), "it is said once: %s", &w.log)
		require.Contains(t, w.log.String(), "2:13: unknown key")
		w.write(t, two)
		pass(2)
		require.Equal(t, []string{"a", "a b"}, w.seen())
		require.NoError(t, w.Err())
	})
}

func TestAFileThatIsGoneLeavesTheOldSetInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, one)
		require.NoError(t, os.Rename(w.path, w.path+".away"))
		pass(5)
		require.ErrorContains(t, w.Err(), "no such file")
		require.Equal(t, 1, strings.Count(w.log.String(), "no such file"))
		w.Reload()
		pass(1)
		require.ErrorContains(t, w.Err(), "no such file")
		require.Equal(t, []string{"a"}, w.seen())
		require.NoError(t, os.Rename(w.path+".away", w.path))
		pass(2)
		require.NoError(t, w.Err(), "the very same file is back")
	})
}

// Symptom: it was not read until its text changed, or SIGHUP came.
func TestAFileThatMayBeReadAgainIsRead(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("part missing: an ordinary user, who may not read all files")
	}
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, one)
		w.write(t, two)
		require.NoError(t, os.Chmod(w.path, 0))
		pass(5)
		require.ErrorContains(t, w.Err(), "permission denied")
		require.NoError(t, os.Chmod(w.path, 0o600))
		pass(2)
		require.NoError(t, w.Err())
		require.Equal(t, []string{"a", "a b"}, w.seen())
		require.Equal(t, 1, strings.Count(w.log.String(), "permission denied"), "nothing is written any more")
	})
}

func TestReloadReadsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, one)
		w.Reload()
		synctest.Wait()
		require.Equal(t, []string{"a", "a"}, w.seen(), "though nothing changed")
		w.write(t, two)
		w.Reload()
		synctest.Wait()
		require.Equal(t, []string{"a", "a", "a b"}, w.seen())
		pass(5)
		require.Len(t, w.seen(), 3, "what was read is not read again")
	})
}

func TestASetThatIsRefusedIsAMistake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, one)
		w.mu.Lock()
		w.err = errors.New("makes no sense")
		w.mu.Unlock()
		w.write(t, two)
		pass(5)
		require.Len(t, w.seen(), 2, "once")
		require.ErrorContains(t, w.Err(), "makes no sense")
		require.Len(t, w.Instances(), 1)
	})
}

func TestOpenRefusesWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	for path, want := range map[string]string{
		dir:                             "is not a regular file",
		fifo:                            "is not a regular file",
		filepath.Join(dir, "fleet.yml"): "no such file",
	} {
		_, err := inventory.Open(t.Context(), inventory.Config{Path: path, Fallback: fallback(t)})
		require.ErrorContains(t, err, want)
	}
	_, err := inventory.Open(t.Context(), inventory.Config{Path: dir})
	require.ErrorContains(t, err, "Fallback")
}
