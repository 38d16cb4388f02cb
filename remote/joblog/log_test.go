package joblog_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stepmux/stepmux/remote/joblog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func create(t testing.TB, limit int64) *joblog.Log {
	t.Helper()
	l, err := joblog.Create(filepath.Join(t.TempDir(), "log"), limit)
	require.NoError(t, err)
	t.Cleanup(func() { l.Remove() })
	return l
}

// readAll follows l from off to its end in pieces of at most size bytes.
func readAll(ctx context.Context, l *joblog.Log, off int64, size int) ([]byte, error) {
	var all []byte
	buf := make([]byte, size)
	for {
		n, err := l.ReadAt(ctx, buf, off+int64(len(all)))
		all = append(all, buf[:n]...)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
	}
}

func TestBytesAreKeptExactly(t *testing.T) {
	// Symptom: blank lines and carriage returns were dropped and a final newline was made up, so that
	// offsets lied.
	l := create(t, 0)
	want := "a\r\n\n\nb\x00\xff no newline"
	for _, b := range []byte(want) {
		_, err := l.Write([]byte{b})
		require.NoError(t, err)
	}
	require.EqualValues(t, len(want), l.Len())
	require.NoError(t, l.Close())
	for off := range len(want) + 1 {
		got, err := readAll(t.Context(), l, int64(off), 3)
		require.NoError(t, err)
		require.Equal(t, want[off:], string(got))
	}
}

func TestReadersFollowWhileItGrows(t *testing.T) {
	l := create(t, 0)
	var want []byte
	var wg sync.WaitGroup
	got := make([][]byte, 8)
	for i := range got {
		wg.Go(func() { got[i], _ = readAll(t.Context(), l, 0, 1+i*100) })
	}
	for i := range 2000 {
		p := bytes.Repeat([]byte{byte(i)}, i%97)
		want = append(want, p...)
		_, err := l.Write(p)
		require.NoError(t, err)
	}
	require.NoError(t, l.Close())
	wg.Wait()
	for _, g := range got {
		require.True(t, bytes.Equal(want, g))
	}
}

func TestPartialLinesAreReadAtOnce(t *testing.T) {
	l := create(t, 0)
	_, err := l.Write([]byte("no newline yet"))
	require.NoError(t, err)
	buf := make([]byte, 64)
	n, err := l.ReadAt(t.Context(), buf, 0)
	require.NoError(t, err)
	require.Equal(t, "no newline yet", string(buf[:n]))
}

func TestReaderIsWokenByItsContext(t *testing.T) {
	l := create(t, 0)
	ctx, cancel := context.WithCancelCause(t.Context())
	because := errors.New("because")
	done := make(chan error)
	go func() {
		_, err := l.ReadAt(ctx, make([]byte, 1), 0)
		done <- err
	}()
	cancel(because)
	require.ErrorIs(t, <-done, because)
}

func TestOffsetsOutsideAreErrors(t *testing.T) {
	l := create(t, 0)
	_, err := l.ReadAt(t.Context(), make([]byte, 1), -1)
	require.ErrorIs(t, err, joblog.ErrOffset)
	_, err = l.Write([]byte("abc"))
	require.NoError(t, err)
	require.NoError(t, l.Close())
	_, err = l.ReadAt(t.Context(), make([]byte, 1), 3)
	require.Equal(t, io.EOF, err)
	_, err = l.ReadAt(t.Context(), make([]byte, 1), 4)
	require.ErrorIs(t, err, joblog.ErrOffset)
}

func TestLimitCutsAndSaysSo(t *testing.T) {
	l := create(t, 10)
	n, err := l.Write([]byte("0123456789abc"))
	require.NoError(t, err)
	require.Equal(t, 13, n, "the process is not held up")
	_, err = l.Write([]byte("more"))
	require.NoError(t, err)
	require.NoError(t, l.Close())
	got, err := readAll(t.Context(), l, 0, 100)
	require.NoError(t, err)
	require.Equal(t, "0123456789\n[output limit of 10 bytes reached, the rest is dropped]\n", string(got))
	require.EqualValues(t, 7, l.Dropped())
}

func TestWriteAfterCloseFailsAndCloseIsIdempotent(t *testing.T) {
	l := create(t, 0)
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	_, err := l.Write([]byte("x"))
	require.ErrorIs(t, err, os.ErrClosed)
}

func TestCreateNeverTakesWhatIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	require.NoError(t, os.Symlink("/etc/passwd", path))
	_, err := joblog.Create(path, 0)
	require.ErrorIs(t, err, os.ErrExist)
}

func TestDiskErrorIsRememberedAndWritingGoesOn(t *testing.T) {
	// /dev/full takes opens and fails every write as a full disk does.
	dir := t.TempDir()
	l, err := joblog.Create(filepath.Join(dir, "log"), 0)
	require.NoError(t, err)
	_, err = l.Write([]byte("kept"))
	require.NoError(t, err)
	l.BreakFile(t)
	n, err := l.Write([]byte("lost"))
	require.NoError(t, err)
	require.Equal(t, 4, n)
	require.Error(t, l.Err())
	require.Error(t, l.Close())
	require.EqualValues(t, 4, l.Len())
	require.EqualValues(t, 4, l.Dropped())
}

func FuzzReadsAtAnyOffsetAddUpToWhatWasWritten(f *testing.F) {
	f.Add(uint64(1), "hello\nworld", 3)
	f.Add(uint64(7), strings.Repeat("x", 5000), 4096)
	f.Fuzz(func(t *testing.T, seed uint64, text string, size int) {
		size = max(1, size%8192)
		r := rand.New(rand.NewPCG(seed, seed))
		l := create(t, 0)
		var wg sync.WaitGroup
		wg.Go(func() {
			for rest := text; rest != ""; {
				n := 1 + r.IntN(len(rest))
				_, _ = l.Write([]byte(rest[:n]))
				rest = rest[n:]
			}
			_ = l.Close()
		})
		var got []byte
		buf := make([]byte, size)
		for {
			n, err := l.ReadAt(t.Context(), buf, int64(len(got)))
			got = append(got, buf[:n]...)
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
		}
		wg.Wait()
		require.Equal(t, text, string(got))
	})
}

func BenchmarkWriteAndFollow(b *testing.B) {
	l := create(b, 0)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 64<<10)
		for off := int64(0); ; {
			n, err := l.ReadAt(context.Background(), buf, off)
			if err != nil {
				return
			}
			off += int64(n)
		}
	}()
	p := make([]byte, 32<<10)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		_, _ = l.Write(p)
	}
	_ = l.Close()
	<-done
}
