package buildlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// stuck is a Writer that does not return before it is let go.
type stuck struct {
	begun chan struct{} // receives when a write begins
	free  chan struct{}

	mu  sync.Mutex // guards the following
	buf bytes.Buffer
}

func newStuck() *stuck { return &stuck{begun: make(chan struct{}, 100), free: make(chan struct{})} }

func (s *stuck) Write(p []byte) (int, error) {
	s.begun <- struct{}{}
	<-s.free
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *stuck) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// remarksIn returns a stream of the step runner into l.
func remarksIn(l *Log) *Remarks { return l.Remarks(make(chan struct{})) }

func TestLogKeepsTheOrderAndLosesNothing(t *testing.T) {
	var out bytes.Buffer
	l := New(&out, 0)
	var want strings.Builder
	says := remarksIn(l)
	for i := range 5000 {
		fmt.Fprintf(&want, "line %d of the job\n", i)
		_, err := fmt.Fprintf(l, "line %d of the job\n", i)
		require.NoError(t, err)
		if i%100 == 0 {
			fmt.Fprintf(&want, "step runner: notice %d\n", i)
			_, _ = says.Write(fmt.Appendf(nil, "step-runner: notice %d\n", i))
		}
	}
	big := bytes.Repeat([]byte("0123456789abcde\n"), 1<<16)
	n, err := l.Write(big)
	require.NoError(t, err)
	require.Equal(t, len(big), n)
	want.Write(big)
	l.Close(t.Context())
	require.True(t, want.String() == out.String(), "%d bytes of %d", out.Len(), want.Len())
	_, err = l.Write([]byte("too late"))
	require.NoError(t, err)
	_, _ = says.Write([]byte("too late\n"))
	l.Close(t.Context())
	require.Equal(t, want.Len(), out.Len(), "after Close nothing is written")
}

func TestNobodysLinesPoseAsAnothers(t *testing.T) {
	for name, test := range map[string]struct {
		job  []string // pieces; one that begins with "!" is the step runner's
		want string
	}{
		"the mark":                {[]string{"step runner: all is well\n"}, "step runner:| all is well\n"},
		"in pieces":               {[]string{"step ", "runner", ":", " ", "fake\n"}, "step runner:| fake\n"},
		"after a carriage return": {[]string{"x\rstep runner: fake\n"}, "x\rstep runner:| fake\n"},
		"after CR LF":             {[]string{"x\r\nstep runner: fake\n"}, "x\r\nstep runner:| fake\n"},
		"twice": {
			[]string{"step runner: step runner: x\nstep runner: y"}, "step runner:| step runner: x\nstep runner:| y",
		},
		"elsewhere on a line": {[]string{"my step runner: is mine\n"}, "my step runner: is mine\n"},
		"nearly": {
			[]string{"step runner:x\nstep runnet: y\nstep runner\n"}, "step runner:x\nstep runnet: y\nstep runner\n",
		},
		"a remark ends a line": {[]string{"no end", "!notice\n", "more\n"}, "no end\nstep runner: notice\nmore\n"},
		"after a remark": {
			[]string{"step", "!notice\n", "step runner: fake\n"}, "step\nstep runner: notice\nstep runner:| fake\n",
		},
		"a remark in the mark": {
			[]string{"step runner:", "!notice\n", " fake\n"}, "step runner:\nstep runner: notice\n fake\n",
		},
		"a remark after CR": {[]string{"50 %\r", "!notice\n"}, "50 %\r\nstep runner: notice\n"},
		"lines of a remark": {
			[]string{"!one\ntwo\n\nthree\n"}, "step runner: one\nstep runner: two\nstep runner: three\n",
		},
		"control characters": {
			[]string{"!a\rb\x1b[31mc\x00d\u202ee\tf\u2028g\xff\r\n"}, "step runner: a?b?[31mc?d?e f?g?\n",
		},
		"bytes of the job stay":     {[]string{"\x1b[31m\x00\xff\t\n"}, "\x1b[31m\x00\xff\t\n"},
		"its own mark is not twice": {[]string{"!step-runner: refused\n"}, "step runner: refused\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			l := New(&out, 0)
			says := remarksIn(l)
			for _, piece := range test.job {
				if text, own := strings.CutPrefix(piece, "!"); own {
					_, _ = says.Write([]byte(text))
					continue
				}
				_, err := l.Write([]byte(piece))
				require.NoError(t, err)
			}
			l.Close(t.Context())
			require.Equal(t, test.want, out.String())
		})
	}
}

func TestRemarksAreWholeLinesHoweverTheyCome(t *testing.T) {
	var out bytes.Buffer
	l := New(&out, 0)
	says := remarksIn(l)
	for _, c := range []byte("first\nsec") {
		_, _ = says.Write([]byte{c})
	}
	_, _ = says.Write([]byte("ond\n" + strings.Repeat("x", 3*maxRemark+10)))
	says.Flush()
	says.Flush()
	l.Close(t.Context())
	long := "step runner: " + strings.Repeat("x", maxRemark) + "\n"
	want := "step runner: first\nstep runner: second\n" + long + long + long + "step runner: " + strings.Repeat("x", 10)
	require.Equal(t, want+"\n", out.String())
}

func FuzzOnlyTheStepRunnersLinesHaveItsMark(f *testing.F) {
	f.Add([]byte("step runner: x\rstep runner: \nstep runner:"), []byte("a\nb"), uint8(3))
	f.Fuzz(func(t *testing.T, job, own []byte, cut uint8) {
		var out bytes.Buffer
		l := New(&out, 0)
		says := remarksIn(l)
		at := min(int(cut), len(job))
		_, _ = l.Write(job[:at])
		_, _ = says.Write(own)
		says.Flush()
		_, _ = l.Write(job[at:])
		l.Close(t.Context())
		var marked []string
		for line := range strings.SplitSeq(strings.ReplaceAll(out.String(), "\r", "\n"), "\n") {
			if strings.HasPrefix(line, mark) {
				marked = append(marked, line[len(mark):])
			}
		}
		var want []string
		for line := range bytes.SplitSeq(own, []byte{'\n'}) {
			for len(line) > maxRemark {
				want = append(want, printable(line[:maxRemark]))
				line = line[maxRemark:]
			}
			want = append(want, printable(line))
		}
		var said []string
		for _, text := range want {
			if text != "" {
				said = append(said, text)
			}
		}
		require.Equal(t, said, marked)
	})
}

func TestALogThatFailsAtSomeByteSaysSoAtOnceAndToAll(t *testing.T) {
	full := errors.New("no space left on device")
	for _, at := range []int{0, 1, 100, 200_000} {
		var out bytes.Buffer
		l := New(writerFunc(func(p []byte) (int, error) {
			n, _ := out.Write(p[:min(len(p), at-out.Len())])
			if n < len(p) {
				return n, full
			}
			return n, nil
		}), 0)
		ended := make(chan error, 1)
		stop := l.OnFailure(func(err error) { ended <- err })
		n, err := l.Write(make([]byte, 1<<20))
		require.ErrorIs(t, err, full)
		require.Less(t, n, 1<<20)
		failed := (*Error)(nil)
		require.ErrorAs(t, <-ended, &failed)
		require.Equal(t, "write build log: no space left on device", failed.Error())
		require.False(t, stop())
		_, err = l.Write([]byte("x"))
		require.ErrorIs(t, err, full)
		require.ErrorIs(t, l.Flush(t.Context()), full)
		l.Close(t.Context())
		require.Equal(t, at, out.Len())
	}
}

type writerFunc func([]byte) (int, error)

func (w writerFunc) Write(p []byte) (int, error) { return w(p) }

func TestALogThatTakesLessThanItWasGivenHasFailed(t *testing.T) {
	l := New(writerFunc(func(p []byte) (int, error) { return len(p) - 1, nil }), 0)
	_, err := l.Write([]byte("xx"))
	require.NoError(t, err, "that is not known yet")
	require.ErrorIs(t, l.Flush(t.Context()), io.ErrShortWrite)
}

//stepmux:reliability mechanisms | The memory that a build's log takes is bounded | `connector/buildlog/log.go`
func TestALogThatTakesNothingFailsAfterItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := newStuck()
		l := New(to, time.Minute)
		begin := time.Now()
		n, err := l.Write(make([]byte, 1<<20))
		require.ErrorContains(t, err, "the writer took nothing for 1m0s")
		require.Equal(t, time.Minute, time.Since(begin))
		require.LessOrEqual(t, n, 2*outputRoom, "the memory is bounded")
		l.Close(t.Context())
		require.Equal(t, time.Minute, time.Since(begin), "Close does not wait for it again")
		close(to.free) // its goroutine ends, or the bubble would say so
		synctest.Wait()
		require.LessOrEqual(t, len(to.String()), outputRoom, "and writes no more")
		require.Len(t, to.begun, 1)
	})
}

func TestASlowLogIsNoStuckOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := New(writerFunc(func(p []byte) (int, error) {
			<-time.NewTimer(59 * time.Second).C
			return out.Write(p)
		}), time.Minute)
		text := bytes.Repeat([]byte("slow but sure\n"), 1<<16)
		_, err := l.Write(text)
		require.NoError(t, err)
		require.NoError(t, l.Flush(t.Context()))
		require.True(t, bytes.Equal(text, out.Bytes()))
		<-time.NewTimer(time.Hour).C
		require.NoError(t, l.Flush(t.Context()), "a log that is given nothing takes nothing")
	})
}

func TestCloseOfAStuckLogEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := newStuck()
		l := New(to, 0)
		_, err := l.Write([]byte("taken"))
		require.NoError(t, err)
		<-to.begun
		_, err = l.Write([]byte("queued"))
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		begin := time.Now()
		l.Close(ctx)
		require.Equal(t, 20*time.Second, time.Since(begin))
		l.Close(ctx)
		require.Equal(t, 20*time.Second+closeGrace, time.Since(begin), "in a hurry")
		close(to.free)
		synctest.Wait()
		require.Equal(t, "taken", to.String())
	})
}

func TestAStuckLogHoldsUpNobodyWhoGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := newStuck()
		l := New(to, time.Hour)
		done := make(chan struct{})
		says := l.Remarks(done)
		ended := make(chan error, 2)
		go func() {
			_, err := l.WriteUntil(done, make([]byte, 1<<20))
			ended <- err
		}()
		go func() {
			_, _ = says.Write(bytes.Repeat([]byte("notice\n"), 1<<16))
			ended <- nil
		}()
		synctest.Wait()
		require.Empty(t, ended, "both wait")
		close(done)
		<-ended
		<-ended
		l.mu.Lock()
		require.LessOrEqual(t, len(l.queue), outputRoom+remarkRoom+1, "one more ends an open line of the job")
		l.mu.Unlock()
		close(to.free)
		l.Close(t.Context())
	})
}

func TestRemarksFindRoomWhereAJobWaitsForSome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := newStuck()
		l := New(to, time.Hour)
		wrote := make(chan error, 1)
		go func() {
			_, err := l.Write(make([]byte, 1<<20))
			wrote <- err
		}()
		synctest.Wait()
		_, _ = remarksIn(l).Write([]byte("last words\n")) // does not wait
		close(to.free)
		require.NoError(t, <-wrote)
		l.Close(t.Context())
		require.Contains(t, to.String(), "\nstep runner: last words\n")
	})
}

func TestAnIdleLogHasNoGoroutineAndNoBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(io.Discard, 0)
		_, err := l.Write(make([]byte, 1<<20))
		require.NoError(t, err)
		synctest.Wait()
		l.mu.Lock()
		defer l.mu.Unlock()
		require.False(t, l.writing)
		require.Nil(t, l.queue)
	})
}

// Two Logs of one Writer wrote to it at the same time.
func TestOneWriterHasOneLog(t *testing.T) {
	var one, two bytes.Buffer
	f := writerFunc(one.Write) // cannot be compared
	all := []*Log{New(&two, 0), New(&one, 0), New(f, 0), New(nil, 0)}
	for _, w := range []io.Writer{&one, all[1]} {
		l, end := Of(w, 0, all...)
		require.Same(t, all[1], l)
		end(t.Context())
		require.False(t, l.closed)
	}
	for _, w := range []io.Writer{new(bytes.Buffer), f, nil} {
		l, end := Of(w, 0, all...)
		require.NotContains(t, all, l)
		end(t.Context())
		require.True(t, l.closed)
	}
}
