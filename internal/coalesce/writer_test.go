package coalesce_test

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stepmux/stepmux/internal/coalesce"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gatedWriter lets one write through for each token it is given.
type gatedWriter struct {
	entered chan int // the sizes of the writes, as they begin
	tokens  chan error

	mu  sync.Mutex // guards the following
	got bytes.Buffer
}

func newGatedWriter() *gatedWriter {
	return &gatedWriter{entered: make(chan int, 100), tokens: make(chan error, 100)}
}

func (g *gatedWriter) Write(p []byte) (int, error) {
	g.entered <- len(p)
	if err := <-g.tokens; err != nil {
		return 0, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.got.Write(p)
}

// run starts w.Run and returns a channel with its result.
func run(w *coalesce.Writer) <-chan error {
	done := make(chan error, 1)
	go func() { done <- w.Run() }()
	return done
}

func TestWriterGathersBytesThatComeDuringAWrite(t *testing.T) {
	to := newGatedWriter()
	w := coalesce.New(to, 100)
	done := run(w)
	_, err := w.Write([]byte("first"))
	require.NoError(t, err)
	require.Equal(t, 5, <-to.entered)
	for range 10 {
		n, err := w.Write([]byte("more"))
		require.NoError(t, err)
		require.Equal(t, 4, n)
	}
	to.tokens <- nil
	require.Equal(t, 40, <-to.entered, "ten writes in one")
	to.tokens <- nil
	require.NoError(t, w.Close())
	require.NoError(t, <-done)
	require.Equal(t, "first"+string(bytes.Repeat([]byte("more"), 10)), to.got.String())
}

func TestPiecesOfOneWriteGoOutTogether(t *testing.T) {
	to := newGatedWriter()
	w := coalesce.New(to, 100)
	done := run(w)
	require.NoError(t, w.WriteAll([]byte("head"), nil, []byte("body")))
	require.Equal(t, 8, <-to.entered)
	to.tokens <- nil
	require.NoError(t, w.Close())
	require.NoError(t, <-done)
	require.ErrorIs(t, w.WriteAll([]byte("head"), []byte("body")), coalesce.ErrClosed)
}

func TestWriterKeepsNoMoreThanItsSize(t *testing.T) {
	to := newGatedWriter()
	w := coalesce.New(to, 10)
	done := run(w)
	wrote := make(chan error, 1)
	go func() {
		n, err := w.Write(make([]byte, 35))
		if n != 35 {
			err = errors.Join(err, io.ErrShortWrite)
		}
		wrote <- err
	}()
	for sum := 0; sum < 35; {
		n := <-to.entered
		require.LessOrEqual(t, n, 10)
		sum += n
		to.tokens <- nil
	}
	require.NoError(t, <-wrote)
	require.NoError(t, w.Close())
	require.NoError(t, <-done)
	require.Equal(t, 35, to.got.Len())
}

func TestWriterReturnsTheErrorToLaterWrites(t *testing.T) {
	to := newGatedWriter()
	w := coalesce.New(to, 10)
	done := run(w)
	broken := errors.New("broken")
	to.tokens <- broken
	_, err := w.Write(make([]byte, 35))
	require.ErrorIs(t, err, broken)
	require.ErrorIs(t, <-done, broken)
	_, err = w.Write([]byte("x"))
	require.ErrorIs(t, err, broken)
}

func TestCloseWakesAWriteAndIsIdempotent(t *testing.T) {
	to := newGatedWriter()
	w := coalesce.New(to, 10)
	done := run(w)
	wrote := make(chan error, 1)
	go func() {
		_, err := w.Write(make([]byte, 35))
		wrote <- err
	}()
	<-to.entered // and it stays there
	require.NoError(t, w.Close())
	require.NoError(t, w.Close())
	require.Error(t, <-wrote)
	close(to.tokens)
	require.NoError(t, <-done)
	_, err := w.Write([]byte("x"))
	require.Error(t, err)
}

func TestReserveWaitsInOrderUntilThereIsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := newGatedWriter()
		w := coalesce.New(to, 100)
		done := run(w)
		reserve := func(n int, stop <-chan struct{}) <-chan bool {
			got := make(chan bool, 1)
			go func() { got <- w.Reserve(n, stop) }()
			synctest.Wait()
			return got
		}
		require.True(t, w.Reserve(25, nil))
		require.True(t, w.Reserve(20, nil), "half of the Writer")
		stop := make(chan struct{})
		stopped, first, second := reserve(25, stop), reserve(25, nil), reserve(5, nil)
		require.Empty(t, second, "there is room, but others came first")
		close(stop)
		require.False(t, <-stopped)
		synctest.Wait()
		require.Empty(t, first)

		_, err := w.Write(make([]byte, 25)) // the frozen link takes it
		require.NoError(t, err)
		w.Release(25)
		require.True(t, <-first)
		require.True(t, <-second)
		_, err = w.Write(make([]byte, 50))
		require.NoError(t, err, "reserved bytes never wait")
		w.Release(50)

		third := reserve(25, nil)
		require.Empty(t, third, "they wait for the link")
		to.tokens <- nil
		require.True(t, <-third)
		require.NoError(t, w.Close())
		require.True(t, w.Reserve(1000, nil), "Write tells that it is closed")
		to.tokens <- nil
		require.NoError(t, <-done)
	})
}

func TestReserveThatWaitsTakesNoMemory(t *testing.T) {
	w := coalesce.New(io.Discard, 100)
	require.True(t, w.Reserve(50, nil))
	stop := make(chan struct{})
	close(stop)
	require.Less(t, testing.AllocsPerRun(1000, func() {
		require.False(t, w.Reserve(1, stop))
	}), 1.0)
	require.Less(t, testing.AllocsPerRun(1000, func() {
		go w.Release(50)
		require.True(t, w.Reserve(50, nil))
	}), 2.0, "of the test's goroutine")
}

// direct calls w.Direct in a goroutine. The write writes the passed bytes and then data to to.
func direct(w *coalesce.Writer, to io.Writer, data string) <-chan error {
	done := make(chan error, 1)
	go func() {
		done <- w.Direct(func(before []byte) error {
			_, err := to.Write(append(before, data...))
			return err
		})
	}()
	return done
}

func TestDirectWritesAfterGatheredBytesAndBeforeLaterOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := newGatedWriter()
		w := coalesce.New(to, 100)
		done := run(w)
		write := func(text string) {
			_, err := w.Write([]byte(text))
			require.NoError(t, err)
			synctest.Wait()
		}
		write("one ")
		wrote := direct(w, to, "three ")
		write("two ")
		to.tokens <- nil // for one
		synctest.Wait()
		write("four ")
		to.tokens <- nil // for two and three
		require.NoError(t, <-wrote)
		to.tokens <- nil
		require.NoError(t, w.Close())
		require.NoError(t, <-done)
		require.Equal(t, "one two three four ", to.got.String())
	})
}

func TestAnErrorOfDirectEndsTheWriter(t *testing.T) {
	to := newGatedWriter()
	w := coalesce.New(to, 100)
	done := run(w)
	broken := errors.New("broken")
	require.ErrorIs(t, w.Direct(func([]byte) error { return broken }), broken)
	require.ErrorIs(t, <-done, broken)
	require.ErrorIs(t, w.Direct(func([]byte) error { return nil }), broken)
	_, err := w.Write([]byte("x"))
	require.ErrorIs(t, err, broken)
}

func TestCloseWakesADirectThatWaitsAndLetsOneThatWritesFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := newGatedWriter()
		w := coalesce.New(to, 100)
		done := run(w)
		first := direct(w, to, "first ")
		synctest.Wait()
		second := direct(w, to, "second ")
		_, err := w.Write([]byte("rest"))
		require.NoError(t, err)
		synctest.Wait()
		require.NoError(t, w.Close())
		require.ErrorIs(t, <-second, coalesce.ErrClosed)
		to.tokens <- nil
		require.NoError(t, <-first)
		to.tokens <- nil
		require.NoError(t, <-done)
		require.Equal(t, "first rest", to.got.String())
	})
}
