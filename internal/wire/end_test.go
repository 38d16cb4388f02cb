package wire

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const testKey = "0123456789abcdef0123456789abcdef"

// scanAll scans stream in pieces of n bytes.
func scanAll(s *EndScanner, stream string, n int) string {
	var out bytes.Buffer
	for len(stream) > 0 {
		k := min(n, len(stream))
		out.Write(s.Scan([]byte(stream[:k])))
		stream = stream[k:]
	}
	out.Write(s.Rest())
	return out.String()
}

func TestEndIsFoundHoweverTheStreamIsCut(t *testing.T) {
	other := End{Code: 9}.Append(nil, strings.Repeat("f", EndKeySize))
	for name, test := range map[string]struct {
		end   End
		alive bool
	}{
		"exit":           {end: End{}},
		"exit code":      {end: End{Code: 137}},
		"failure":        {end: End{Stage: "tmp", Text: "no space left"}},
		"signs of life":  {end: End{Code: 3}, alive: true},
		"without a text": {end: End{Stage: "tool"}},
	} {
		t.Run(name, func(t *testing.T) {
			// Half a mark, another run's line, a binary byte, no newline before the line.
			want := "out\n\x1estepmux-e" + string(other) + "\x00\xff\x1e\x1etail"
			stream := want
			if test.alive {
				stream = want[:5] + endMark + testKey + " alive\n" + want[5:]
				stream += endMark + testKey + " alive\n"
			}
			stream += string(test.end.Append(nil, testKey)) + "what a daemon says later"
			for n := 1; n <= len(stream); n++ {
				s := NewEndScanner(testKey)
				require.Equal(t, want, scanAll(s, stream, n), "pieces of %d", n)
				got, ok := s.End()
				require.True(t, ok)
				require.Equal(t, test.end, got)
			}
		})
	}
}

func TestStreamWithoutAnEndIsPassedOnUnchanged(t *testing.T) {
	for _, stream := range []string{"", "x", "\x1e", endMark, endMark + testKey, endMark + testKey[:5] + "\n"} {
		for n := 1; n <= max(1, len(stream)); n++ {
			s := NewEndScanner(testKey)
			require.Equal(t, stream, scanAll(s, stream, n))
			_, ok := s.End()
			require.False(t, ok)
		}
	}
}

func TestMalformedEndIsAFailure(t *testing.T) {
	for _, line := range []string{
		"exit 256\n", "exit -1\n", "exit\n", "fail\n", "fail " + strings.Repeat("x", 2*maxEndLine),
	} {
		s := NewEndScanner(testKey)
		require.Empty(t, scanAll(s, endMark+testKey+" "+line, 100))
		end, ok := s.End()
		require.True(t, ok, line)
		require.NotEmpty(t, end.Stage)
	}
}

func TestEndIsOneBoundedLine(t *testing.T) {
	line := End{Stage: "tmp", Text: " a\nb\r\n" + strings.Repeat("c", 1<<20)}.Append(nil, testKey)
	require.Equal(t, 1, bytes.Count(line, []byte{'\n'}))
	require.Less(t, len(line), 4096, "PIPE_BUF: one write stays together")
}

func TestParseEndKeyTakesKeysOnly(t *testing.T) {
	_, err := ParseEndKey(testKey)
	require.NoError(t, err)
	for _, s := range []string{"", testKey[1:], testKey + "0", strings.ToUpper(testKey), testKey[1:] + "\n"} {
		_, err := ParseEndKey(s)
		require.Error(t, err, "%q", s)
	}
}

func FuzzEndScanner(f *testing.F) {
	f.Add([]byte("out"+string(End{Code: 1}.Append(nil, testKey))+"more"), 3)
	f.Add([]byte(endMark+testKey), 1)
	f.Fuzz(func(t *testing.T, stream []byte, n int) {
		n = max(1, min(n, len(stream)+1))
		whole, cut := NewEndScanner(testKey), NewEndScanner(testKey)
		require.Equal(t, scanAll(whole, string(stream), len(stream)+1), scanAll(cut, string(stream), n))
		a, aok := whole.End()
		b, bok := cut.End()
		require.Equal(t, aok, bok)
		if len(stream) <= maxEndLine {
			require.Equal(t, a, b)
		}
	})
}
