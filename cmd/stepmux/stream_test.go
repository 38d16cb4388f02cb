package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// reader takes what is written to it as long as its gate is open.
type reader struct {
	gate chan struct{} // closed when it takes anything
	err  error         // of each write
	got  bytes.Buffer
}

func (r *reader) Write(p []byte) (int, error) {
	<-r.gate
	if r.err != nil {
		return 0, r.err
	}
	return r.got.Write(p)
}

func newReader() *reader { return &reader{gate: make(chan struct{})} }

func TestABuildWaitsForRoomAndOthersDoNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := newReader()
		s := newStream("it", to, func(error) {}, nil)
		flood, other := s.share(), s.share()
		flooded := make(chan int)
		go func() {
			n := 0
			for ; n < 4; n++ {
				require.NoError(t, flood.put(bytes.Repeat([]byte("x"), shareRoom/2), true))
				if n == 1 {
					flooded <- n
				}
			}
			flooded <- n
		}()
		<-flooded
		synctest.Wait()
		select {
		case <-flooded:
			require.Fail(t, "the flood found room")
		default:
		}
		require.NoError(t, other.put([]byte("other\n"), true))
		require.NoError(t, flood.put([]byte("dropped\n"), false))
		fmt.Fprint(s, "result\n")
		close(to.gate)
		require.Equal(t, 4, <-flooded)
		require.EqualError(t, s.close(t.Context(), t.Context(), time.Minute),
			"write build log: it takes nothing (8 bytes lost)")
		require.Equal(t, 2*shareRoom, strings.Count(to.got.String(), "x"))
		require.Contains(t, to.got.String(), "other\nresult\n")
	})
}

func TestMessagesThatNobodyTakesAreDroppedAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := newReader()
		s := newStream("it", to, func(error) {}, nil)
		line := []byte(strings.Repeat("m", talkRoom/4-1) + "\n")
		for range 7 {
			s.say(line)
		}
		close(to.gate)
		synctest.Wait()
		s.say([]byte("last\n"))
		require.NoError(t, s.close(t.Context(), t.Context(), time.Minute))
		require.True(t, strings.HasSuffix(to.got.String(), "\nstepmux: 3 messages dropped: it took nothing\nlast\n"))
		require.Equal(t, 6, strings.Count(to.got.String(), "\n"))
	})
}

// slow takes a piece a second.
type slow struct{ n int }

func (w *slow) Write(p []byte) (int, error) {
	time.Sleep(time.Second) //nolint:forbidigo // in a synctest bubble time does not pass otherwise
	w.n += len(p)
	return len(p), nil
}

func TestCloseWaitsForAReaderThatIsSlowButNotForOneThatIsGone(t *testing.T) {
	text := make([]byte, 10*pieceSize)
	gone := func() io.Writer { return newReader() }
	for name, test := range map[string]struct {
		to      func() io.Writer
		signals int
		took    time.Duration
		lost    string
	}{
		"slow":      {func() io.Writer { return &slow{} }, 0, 10 * time.Second, ""},
		"gone":      {gone, 0, 2 * time.Second, "it takes nothing (327680 bytes lost)"},
		"a signal":  {gone, 1, time.Second, "it takes nothing"},
		"a second":  {gone, 2, 0, "it takes nothing"},
		"a failure": {func() io.Writer { return failing{} }, 0, 0, "no space (327680 bytes lost)"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				to := test.to()
				s := newStream("it", to, func(error) {}, nil)
				fmt.Fprintf(s, "%s", text)
				ctx, interrupt := context.WithCancel(context.Background())
				abort, second := context.WithCancel(context.Background())
				defer interrupt()
				defer second()
				if test.signals > 0 {
					interrupt()
				}
				if test.signals > 1 {
					second()
				}
				start := time.Now()
				err := s.close(ctx, abort, 2*time.Second)
				require.Equal(t, test.took, time.Since(start))
				if test.lost == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, test.lost)
				}
				require.Error(t, s.share().put([]byte("late"), true), "nobody waits any more")
				if r, ok := to.(*reader); ok {
					close(r.gate)
				}
			})
		})
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("no space") }

func TestTheViewStandsBelowTheText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := newReader()
		close(to.gate)
		var lines []string
		columns := 20
		v := &view{
			lines: func(int) []string { return lines },
			size:  func() (int, int) { return columns, 24 },
		}
		s := newStream("it", to, func(error) {}, v)
		step := func(act func()) string {
			act()
			synctest.Wait()
			defer to.got.Reset()
			return to.got.String()
		}
		show := func(now bool, text ...string) func() {
			return func() {
				lines = text
				s.show(now)
			}
		}
		const clear = "\r\x1b[J"
		require.Equal(t, "one", step(show(true, "one")))
		require.Empty(t, step(show(false, "two")), "too soon")
		require.Equal(t, clear+"text\n", step(func() { fmt.Fprint(s, "text\n") }))
		time.Sleep(redrawEvery) //nolint:forbidigo // in a synctest bubble time does not pass otherwise
		require.Equal(t, "three\nfour", step(show(false, "three", "four")))
		time.Sleep(redrawEvery) //nolint:forbidigo // as above
		lines = []string{"a line as long as the terminal", "\u4e16\u754c\u4e16\u754c\u4e16\u754c\u4e16\u754c\u4e16\u754c"}
		require.Equal(t, "\r\x1b[1A\x1b[Jtext\na line as long as t\n\u4e16\u754c\u4e16\u754c\u4e16\u754c\u4e16\u754c\u4e16",
			step(func() { fmt.Fprint(s, "text\n") }))
		columns = 10 // each line takes two now
		require.Equal(t, "\r\x1b[3A\x1b[J",
			step(func() { require.NoError(t, s.close(t.Context(), t.Context(), time.Minute)) }))
	})
}
