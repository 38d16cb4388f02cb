package wire

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// markerOracle is MarkerScanner told simply: of all complete lines, the first whose text after the
// last prefix is an absolute path.
func markerOracle(text []byte) (string, bool) {
	lines := bytes.Split(text, []byte{'\n'})
	for _, line := range lines[:len(lines)-1] {
		i := bytes.LastIndex(line, []byte(readyPrefix))
		if i < 0 || len(line)-i-len(readyPrefix) > maxMarkerPath {
			continue
		}
		if path := strings.TrimRight(string(line[i+len(readyPrefix):]), "\r"); strings.HasPrefix(path, "/") {
			return path, true
		}
	}
	return "", false
}

// scan writes text in pieces of the given size.
func scan(text []byte, size int) (string, bool) {
	var s MarkerScanner
	for len(text) > 0 {
		n, err := s.Write(text[:min(size, len(text))])
		if err != nil {
			panic(err)
		}
		text = text[n:]
	}
	return s.Path()
}

//stepmux:faults executor | The ready marker is missed if a part of the marker comes just before it; its path keeps a
//stepmux:more carriage return; a cancel at the wrong moment gives another error
//stepmux:with connector.TestConnectReturnsTheContextsErrorWheneverItEnds
func TestMarkerScannerFindsTheReadyLine(t *testing.T) {
	long := "/" + strings.Repeat("x", maxMarkerPath-1)
	for name, tc := range map[string]struct {
		text, path string
		found      bool
	}{
		"nothing":                       {"", "", false},
		"the line of serve":             {ReadyLine("/tmp/a/b.sock"), "/tmp/a/b.sock", true},
		"after a greeting":              {"Welcome to Debian\n\n" + ReadyLine("/a"), "/a", true},
		"on the line of a prompt":       {"user@vm:~$ " + ReadyLine("/a"), "/a", true},
		"with a carriage return":        {readyPrefix + "/a\r\n", "/a", true},
		"with spaces in the path":       {ReadyLine("/a b/c"), "/a b/c", true},
		"without its newline":           {readyPrefix + "/a", "", false},
		"with a relative path":          {ReadyLine("a"), "", false},
		"with an empty path":            {ReadyLine(""), "", false},
		"relative, then absolute":       {ReadyLine("a") + ReadyLine("/b"), "/b", true},
		"the first of two":              {ReadyLine("/a") + ReadyLine("/b"), "/a", true},
		"overlapping a partial one":     {"step-runner is listening on " + ReadyLine("/b"), "/b", true},
		"overlapping a whole one":       {readyPrefix + ReadyLine("/b"), "/b", true},
		"overlapping two whole ones":    {readyPrefix + "/x" + readyPrefix + "/a" + ReadyLine("/b"), "/b", true},
		"split by a newline":            {"step-runner is listening\n on socket /a\n", "", false},
		"a path as long as allowed":     {ReadyLine(long), long, true},
		"a path too long":               {ReadyLine(long + "x"), "", false},
		"after a path too long":         {readyPrefix + long + "xyz" + ReadyLine("/b"), "/b", true},
		"on the line after it":          {ReadyLine(long+"x") + ReadyLine("/b"), "/b", true},
		"after a very long line":        {strings.Repeat("noise ", 50_000) + ReadyLine("/b"), "/b", true},
		"after bytes that are not text": {"\x00\xff\xfe\x1b[2J" + ReadyLine("/b"), "/b", true},
	} {
		t.Run(name, func(t *testing.T) {
			want, wantFound := markerOracle([]byte(tc.text))
			require.Equal(t, tc.path, want, "the oracle disagrees with the table")
			require.Equal(t, tc.found, wantFound, "the oracle disagrees with the table")
			for _, size := range []int{1, 2, 7, 34, 35, 36, scanChunk - 1, scanChunk, scanChunk + 1, 1 << 20} {
				path, found := scan([]byte(tc.text), size)
				require.Equal(t, tc.path, path, "in writes of %d bytes", size)
				require.Equal(t, tc.found, found, "in writes of %d bytes", size)
			}
		})
	}
}

func TestMarkerScannerKeepsLittleOfHugeLines(t *testing.T) {
	noise := bytes.Repeat([]byte("x"), 1<<20)
	for name, start := range map[string]string{"before a marker": "", "within a path": readyPrefix + "/"} {
		t.Run(name, func(t *testing.T) {
			var s MarkerScanner
			_, _ = s.Write([]byte(start))
			for range 8 {
				n, err := s.Write(noise)
				require.NoError(t, err)
				require.Equal(t, len(noise), n)
				require.LessOrEqual(t, cap(s.buf), 4*(scanChunk+maxMarkerPath))
			}
			_, found := s.Path()
			require.False(t, found)
		})
	}
}

func TestMarkerScannerDiscardsAfterTheMarker(t *testing.T) {
	var s MarkerScanner
	_, _ = s.Write([]byte(ReadyLine("/a")))
	n, err := s.Write([]byte(ReadyLine("/b")))
	require.NoError(t, err)
	require.Equal(t, len(ReadyLine("/b")), n)
	path, found := s.Path()
	require.True(t, found)
	require.Equal(t, "/a", path)
}

func FuzzMarkerScannerAgreesWithLinesHoweverCut(f *testing.F) {
	f.Add([]byte(ReadyLine("/tmp/x")), uint16(1), uint16(3))
	f.Add([]byte("$ "+readyPrefix+readyPrefix+"/b\r\n"), uint16(5), uint16(1))
	f.Add([]byte("step-runner is listening on "+ReadyLine("/b")), uint16(28), uint16(2))
	f.Add([]byte(readyPrefix+"/"+strings.Repeat("y", maxMarkerPath)+ReadyLine("/c")), uint16(maxMarkerPath), uint16(30))
	f.Fuzz(func(t *testing.T, text []byte, first, second uint16) {
		want, wantFound := markerOracle(text)
		var s MarkerScanner
		// Two sizes in turn: cuts that no single size makes.
		for i, rest := 0, text; len(rest) > 0; i++ {
			size := int(first)
			if i%2 == 1 {
				size = int(second)
			}
			n, err := s.Write(rest[:min(size+1, len(rest))])
			require.NoError(t, err)
			rest = rest[n:]
		}
		got, found := s.Path()
		require.Equal(t, wantFound, found)
		require.Equal(t, want, got)
	})
}

func ExampleMarkerScanner() {
	var s MarkerScanner
	_, _ = fmt.Fprint(&s, "Welcome!\n", ReadyLine("/tmp/gitlab-runner-steps/42/step-runner.sock"))
	fmt.Println(s.Path())
	// Output: /tmp/gitlab-runner-steps/42/step-runner.sock true
}
