package joblog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

func create(t testing.TB, limit int64) *Log {
	t.Helper()
	l := New(filepath.Join(t.TempDir(), "stdout"), limit)
	t.Cleanup(func() {
		if err := l.Remove(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func write(t testing.TB, l *Log, text string) {
	t.Helper()
	n, err := l.Write([]byte(text))
	require.NoError(t, err)
	require.Equal(t, len(text), n)
}

// readAll reads l from off until its end, in pieces of the given size.
func readAll(ctx context.Context, l *Log, off int64, piece int) ([]byte, error) {
	var all []byte
	buf := make([]byte, piece)
	for {
		n, err := l.ReadAt(ctx, buf, off)
		all = append(all, buf[:n]...)
		off += int64(n)
		switch {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return all, err
		}
	}
}

//stepmux:reliability promises | The bytes of a log are those that were written, in full or up to the loss
//stepmux:with remote/job/service.TestFollowIOSendsBytesAsTheyAre
//stepmux:with instance.TestBridgeThatBreaksIsOpenedAnewAndTheLogGoesOn
func TestBytesAreReadAsWrittenFromAnyOffset(t *testing.T) {
	l := create(t, 0)
	text := "\n\nprogress 1%\rprogress 2%\r\n\x00\xff no newline at the end"
	for _, part := range []string{text[:5], "", text[5:12], text[12:]} {
		write(t, l, part)
	}
	require.Equal(t, int64(len(text)), l.Len())
	require.NoError(t, l.Close())
	for off := range len(text) + 1 {
		for _, piece := range []int{1, 7, 1 << 10} {
			got, err := readAll(t.Context(), l, int64(off), piece)
			require.NoError(t, err)
			require.Equal(t, text[off:], string(got))
		}
	}
}

func TestPartOfALineIsReadableAtOnce(t *testing.T) {
	l := create(t, 0)
	write(t, l, "no newl")
	buf := make([]byte, 100)
	n, err := l.ReadAt(t.Context(), buf, 0)
	require.NoError(t, err)
	require.Equal(t, "no newl", string(buf[:n]))
}

func TestReaderWaitsForBytesTheEndOrItsContext(t *testing.T) {
	because := errors.New("follower has gone")
	tests := map[string]struct {
		off    int64
		happen func(t *testing.T, l *Log, cancel context.CancelCauseFunc)
		want   string
		err    error
	}{
		"bytes": {3, func(t *testing.T, l *Log, _ context.CancelCauseFunc) { write(t, l, "def") }, "def", nil},
		"bytes, seen from further on": {5, func(t *testing.T, l *Log, _ context.CancelCauseFunc) {
			write(t, l, "d")
			write(t, l, "e")
			write(t, l, "f")
		}, "f", nil},
		"the end": {
			3,
			func(t *testing.T, l *Log, _ context.CancelCauseFunc) { require.NoError(t, l.Close()) },
			"",
			io.EOF,
		},
		"the end, before it": {
			4,
			func(t *testing.T, l *Log, _ context.CancelCauseFunc) { require.NoError(t, l.Close()) },
			"",
			ErrOffset,
		},
		"removal": {
			3,
			func(t *testing.T, l *Log, _ context.CancelCauseFunc) { require.NoError(t, l.Remove()) },
			"",
			io.EOF,
		},
		"its context": {
			3,
			func(_ *testing.T, _ *Log, cancel context.CancelCauseFunc) { cancel(because) },
			"",
			because,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			l := create(t, 0)
			write(t, l, "abc")
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			type result struct {
				text string
				err  error
			}
			results := make(chan result)
			for range 3 {
				go func() {
					buf := make([]byte, 100)
					n, err := l.ReadAt(ctx, buf, test.off)
					results <- result{string(buf[:n]), err}
				}()
			}
			test.happen(t, l, cancel)
			for range 3 {
				got := <-results
				require.Equal(t, test.want, got.text)
				require.ErrorIs(t, got.err, test.err)
			}
		})
	}
}

func TestReadRefusesOffsetsTheLogDoesNotHave(t *testing.T) {
	l := create(t, 0)
	write(t, l, "abc")
	buf := make([]byte, 10)
	for _, off := range []int64{-1, -1 << 63} {
		_, err := l.ReadAt(t.Context(), buf, off)
		require.ErrorIs(t, err, ErrOffset)
	}
	require.NoError(t, l.Close())
	_, err := l.ReadAt(t.Context(), buf, 3)
	require.Equal(t, io.EOF, err)
	for _, off := range []int64{4, 1<<63 - 1} {
		_, err = l.ReadAt(t.Context(), buf, off)
		require.ErrorIs(t, err, ErrOffset)
		require.ErrorContains(t, err, "past the end at 3")
	}
}

func TestReadOfAContextThatHasEndedReadsNothing(t *testing.T) {
	l := create(t, 0)
	write(t, l, "abc")
	because := errors.New("follower has gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(because)
	n, err := l.ReadAt(ctx, make([]byte, 10), 0)
	require.Zero(t, n)
	require.ErrorIs(t, err, because)
}

//stepmux:reliability mechanisms | No silent loss: an output beyond the limit ends with a line that says so |
//stepmux:more `remote/job/joblog/write.go`
func TestLimitKeepsSoMuchSaysSoOnceAndCountsTheRest(t *testing.T) {
	tests := map[string]struct {
		writes  []string
		kept    string
		dropped int64
	}{
		"below":            {[]string{"12345", "6789"}, "123456789", 0},
		"reached":          {[]string{"12345", "67890", ""}, "1234567890", 0},
		"passed at once":   {[]string{"123456789012345"}, "1234567890", 5},
		"passed within":    {[]string{"12345678", "90123", "4"}, "1234567890", 4},
		"passed just then": {[]string{"1234567890", "1", "23"}, "1234567890", 3},
	}
	const marker = "\n[output limit of 10 bytes reached, the rest is dropped]\n"
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			l := create(t, 10)
			for _, text := range test.writes {
				write(t, l, text)
			}
			require.NoError(t, l.Close())
			want := test.kept
			if test.dropped > 0 {
				want += marker
			}
			got, err := readAll(t.Context(), l, 0, 8)
			require.NoError(t, err)
			require.Equal(t, want, string(got))
			require.Equal(t, int64(len(want)), l.Len())
			require.Equal(t, test.dropped, l.Dropped())
			require.NoError(t, l.Err())
		})
	}
}

// Symptom: a follower that had read everything got no bytes beyond the limit.
func TestBytesThatWereReadMakeRoomForMore(t *testing.T) {
	const limit, piece = 1 << 20, 64 << 10
	l := create(t, limit)
	text := func(i int) string { return strings.Repeat(string(rune('a'+i%26)), piece) }
	buf := make([]byte, piece)
	for i := range 20 * limit / piece {
		write(t, l, text(i))
		n, err := l.ReadAt(t.Context(), buf, int64(i*piece))
		require.NoError(t, err)
		require.Equal(t, text(i), string(buf[:n]))
		require.LessOrEqual(t, l.Size(), int64(limit))
	}
	require.EqualValues(t, 20*limit, l.Len())
	require.Zero(t, l.Dropped())
	var st unix.Stat_t
	require.NoError(t, unix.Stat(l.path, &st))
	require.LessOrEqual(t, st.Blocks*512, int64(limit+piece), "on the disk")

	_, err := l.ReadAt(t.Context(), buf, 0)
	require.ErrorIs(t, err, ErrOffset)
	require.ErrorContains(t, err, "is not kept any more: it was read, and the limit is 1048576 bytes")
	again := int64(20*limit - limit/4)
	n, err := l.ReadAt(t.Context(), buf, again)
	require.NoError(t, err, "a reader whose connection broke is a little behind")
	require.Equal(t, text(int(again)/piece), string(buf[:n]))

	for i := range 2 * limit / piece { // nobody reads
		write(t, l, text(i))
	}
	require.NoError(t, l.Close())
	rest, err := readAll(t.Context(), l, 20*limit, piece)
	require.NoError(t, err)
	require.Contains(t, string(rest), "output limit of 1048576 bytes reached")
	require.EqualValues(t, 2*limit, l.Dropped()+int64(len(rest)-len(l.marker())))
	require.LessOrEqual(t, l.Size(), int64(limit+len(l.marker())))
}

func TestUnreadOutputMakesNoRoom(t *testing.T) {
	l := create(t, 1000)
	write(t, l, strings.Repeat("x", 1000))
	_, err := l.ReadAt(t.Context(), make([]byte, 100), 900)
	require.NoError(t, err)
	write(t, l, "y")
	require.EqualValues(t, 1, l.Dropped(), "the last 100 bytes were read, the first 900 were not")
	got := make([]byte, 1000)
	_, err = l.ReadAt(t.Context(), got, 0)
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("x", 1000), string(got))
}

// Symptom: a slow reader looked at the length, room was made for more, and then it read zeros.
func TestReadThatRoomIsMadeUnderReturnsAnError(t *testing.T) {
	l := create(t, 1<<20)
	write(t, l, strings.Repeat("x", 1<<20))
	_, err := l.ReadAt(t.Context(), make([]byte, 1<<20), 0)
	require.NoError(t, err)
	_, err = l.await(t.Context(), 0)
	require.NoError(t, err)
	write(t, l, "more")
	_, err = l.markRead(0, 100)
	require.ErrorIs(t, err, ErrOffset)
}

func TestFullDiskIsReportedByErrAndBlocksNoWriter(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("part missing: only root can mount a small file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("part missing: cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	l := New(filepath.Join(dir, "stdout"), 0)
	text := strings.Repeat("0123456789abcdef", 1<<10) // 16 KiB
	for range 10 {
		write(t, l, text)
	}
	require.ErrorIs(t, l.Err(), unix.ENOSPC)
	require.ErrorContains(t, l.Err(), "write log "+l.path)
	kept := l.Len()
	require.Positive(t, kept)
	require.Equal(t, int64(10*len(text)), kept+l.Dropped())
	write(t, l, "what comes later, with room again, would be at a wrong offset")
	require.Equal(t, kept, l.Len())
	require.ErrorIs(t, l.Close(), unix.ENOSPC)
	got, err := readAll(t.Context(), l, 0, 1000)
	require.NoError(t, err)
	require.Equal(t, strings.Repeat(text, 10)[:kept], string(got))
	require.NoError(t, l.Remove())
}

func TestTruncatedFileIsNotTheEndOfTheLog(t *testing.T) {
	l := create(t, 0)
	write(t, l, "abcdef")
	l.spill()
	require.NoError(t, os.Truncate(l.path, 3))
	buf := make([]byte, 10)
	n, err := l.ReadAt(t.Context(), buf, 0)
	require.NoError(t, err)
	require.Equal(t, "abc", string(buf[:n]))
	_, err = l.ReadAt(t.Context(), buf, 3)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.NotErrorIs(t, err, io.EOF)
}

func TestCloseEndsWritingButNotReading(t *testing.T) {
	l := create(t, 0)
	write(t, l, "abc")
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	_, err := l.Write([]byte("d"))
	require.ErrorIs(t, err, fs.ErrClosed)
	got, err := readAll(t.Context(), l, 1, 10)
	require.NoError(t, err)
	require.Equal(t, "bc", string(got))
	require.Zero(t, l.Dropped())
}

func TestRemoveDeletesTheFile(t *testing.T) {
	l := create(t, 0)
	write(t, l, "abc")
	require.NoError(t, l.Remove())
	require.NoFileExists(t, l.path)
	require.NoError(t, l.Remove())
	_, err := l.ReadAt(t.Context(), make([]byte, 10), 0)
	require.ErrorIs(t, err, fs.ErrClosed)
	_, err = l.Write([]byte("d"))
	require.ErrorIs(t, err, fs.ErrClosed)

	gone := create(t, 0)
	write(t, gone, strings.Repeat("abc", maxHead))
	require.NoError(t, os.Remove(gone.path))
	require.NoError(t, gone.Remove(), "somebody else has removed it")
}

// Symptom: a short log was a file, and to make the file took longer than its job.
func TestShortLogIsNoFile(t *testing.T) {
	for _, limit := range []int64{0, 100, 2 * maxHead} {
		l := create(t, limit)
		bound := maxHead
		if limit == 100 {
			bound = 100
		}
		first := strings.Repeat("a", bound-1)
		write(t, l, first)
		write(t, l, "b")
		require.NoFileExists(t, l.path)
		got := make([]byte, maxHead)
		n, err := l.ReadAt(t.Context(), got, 0)
		require.NoError(t, err)
		require.Equal(t, first+"b", string(got[:n]))

		write(t, l, "c") // a reader has had the rest, so there is room
		require.FileExists(t, l.path)
		require.Equal(t, int64(bound+1), l.Len())
		require.NoError(t, l.Close())
		rest, err := readAll(t.Context(), l, int64(bound)-1, 1)
		require.NoError(t, err)
		require.Equal(t, "bc", string(rest))
	}
}

func TestALongLogMakesAPrivateFile(t *testing.T) {
	old := unix.Umask(0)
	t.Cleanup(func() { unix.Umask(old) })
	l := create(t, 0)
	write(t, l, "")
	require.NoFileExists(t, l.path)
	long := strings.Repeat("a", maxHead+1)
	write(t, l, long)
	info, err := os.Stat(l.path)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode())

	target := filepath.Join(t.TempDir(), "target")
	link := target + ".link"
	require.NoError(t, os.Symlink(target, link))
	for path, cause := range map[string]error{
		l.path:                     fs.ErrExist,
		link:                       fs.ErrExist,
		filepath.Join(target, "x"): fs.ErrNotExist,
	} {
		other := New(path, 0)
		write(t, other, "abc")
		write(t, other, long)
		require.ErrorIs(t, other.Err(), cause)
		require.ErrorContains(t, other.Err(), path)
		require.EqualValues(t, len(long), other.Dropped())
		write(t, other, "d")
		require.ErrorIs(t, other.Close(), cause)
		got, err := readAll(t.Context(), other, 0, 10)
		require.NoError(t, err)
		require.Equal(t, "abc", string(got))
		require.NoError(t, other.Remove())
	}
	require.NoFileExists(t, target)
	require.FileExists(t, l.path, "who did not make it does not remove it")
	require.Panics(t, func() { New(target, -1) })
}

func TestLogWithoutAByteIsNoFile(t *testing.T) {
	l := create(t, 0)
	require.NoError(t, l.Close())
	_, err := l.ReadAt(t.Context(), make([]byte, 1), 0)
	require.ErrorIs(t, err, io.EOF)
	require.NoFileExists(t, l.path)
	require.NoError(t, l.Remove())
}

func TestManyReadersFollowOneWriter(t *testing.T) {
	l := create(t, 0)
	var want bytes.Buffer
	for i := range 2000 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	group, ctx := errgroup.WithContext(t.Context())
	for reader := range 32 {
		group.Go(func() error {
			off := int64(reader * 100)
			got, err := readAll(ctx, l, off, 1+reader*37)
			if err == nil && !bytes.Equal(got, want.Bytes()[off:]) {
				err = fmt.Errorf("reader %d got %d other bytes", reader, len(got))
			}
			return err
		})
	}
	for line := range bytes.Lines(want.Bytes()) {
		write(t, l, string(line))
	}
	require.NoError(t, l.Close())
	require.NoError(t, group.Wait())
}

func TestWritersAtOnceDoNotMix(t *testing.T) {
	l := create(t, 5000)
	group := new(errgroup.Group)
	for i := range 10 {
		group.Go(func() error {
			for range 100 {
				if _, err := fmt.Fprintf(l, "writer-%d\n", i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	require.NoError(t, l.Close())
	got, err := readAll(t.Context(), l, 0, 4096)
	require.NoError(t, err)
	require.Equal(t, int64(10*100*9-5000), l.Dropped())
	kept, rest, ok := strings.Cut(string(got), "\n[output limit")
	require.True(t, ok)
	require.Len(t, kept, 5000)
	require.Equal(t, 1, strings.Count(rest, "\n"), "the marker is the last line, once")
	for line := range strings.Lines(kept[:len(kept)/9*9]) {
		require.Regexp(t, `^writer-\d\n$`, line)
	}
}

func TestReaderThatNeverReadsDelaysNoWriter(t *testing.T) {
	l := create(t, 0)
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error)
	go func() {
		_, err := l.ReadAt(ctx, make([]byte, 1), 1<<40) // far ahead: woken by every write, for nothing
		waiting <- err
	}()
	for range 1000 {
		write(t, l, "more\n")
	}
	cancel()
	require.ErrorIs(t, <-waiting, context.Canceled)
}
