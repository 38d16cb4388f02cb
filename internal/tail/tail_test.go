package tail

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWriterKeepsTheLastLines(t *testing.T) {
	var w Writer
	require.Empty(t, w.String())
	for _, piece := range []string{"one\n\ntw", "o\r\nthree\nfour\nfive\n", "six \xff\n"} {
		n, err := w.Write([]byte(piece))
		require.NoError(t, err)
		require.Equal(t, len(piece), n)
	}
	require.Equal(t, "two | three | four | five | six ?", w.String())
}

func TestNoMoreThanTheBoundIsKept(t *testing.T) {
	long := strings.Repeat("x", 10*MaxBytes)
	require.Len(t, Append(nil, []byte(long)), MaxBytes)
	kept := Append([]byte("start"), []byte(strings.Repeat("y", MaxBytes-2)))
	require.Len(t, kept, MaxBytes)
	require.Equal(t, "rt", string(kept[:2]))
}

func TestTheFirstLinesOfACrashAreKept(t *testing.T) {
	stack := strings.Repeat("goroutine 1 [running]:\n", MaxBytes)
	for _, said := range []string{"runtime: no thread\nfatal error: newosproc\n", "panic: oops\n"} {
		var w Writer
		for _, piece := range []string{"before\n", said[:4], said[4:] + stack, stack} {
			_, err := w.Write([]byte(piece))
			require.NoError(t, err)
			require.LessOrEqual(t, len(w.kept), MaxBytes)
		}
		want := strings.ReplaceAll(strings.TrimSpace(said), "\n", " | ")
		require.Equal(t, want+Remedy(said), w.String())
		require.Equal(t, w.String(), Lines([]byte("before\n"+said+stack)))
	}
}
