package action

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// newScanner returns a scanner that knows commandNames, and the commands that it finds.
func newScanner(to *bytes.Buffer) (*scanner, *[]command) {
	var found []command
	return &scanner{
		to: to,
		command: func(line string) (string, bool) {
			c, ok := parseCommand(line)
			if !ok || !slices.Contains(commandNames, c.name) {
				return "", false
			}
			found = append(found, c)
			return "", true
		},
		matches: func() bool { return false },
	}, &found
}

func TestCommandsAreTakenOutOfTheOutputHoweverItIsCut(t *testing.T) {
	text := "a\n::group::x\n \t::set-output name=a,b=%2C::v%0Aw\r\n:: no\n::unknown::text\n##[warning file=f;]old\n" +
		":\n#\n\nlast"
	want := "a\n:: no\n::unknown::text\n:\n#\n\nlast"
	for size := 1; size <= len(text); size++ {
		var out bytes.Buffer
		s, found := newScanner(&out)
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			_, err := s.Write([]byte(rest[:n]))
			require.NoError(t, err)
			rest = rest[n:]
		}
		require.NoError(t, s.Close())
		require.Equal(t, want, out.String(), size)
		require.Equal(t, []command{
			{"group", map[string]string{}, "x"},
			{"set-output", map[string]string{"name": "a", "b": ","}, "v\nw"},
			{"warning", map[string]string{"file": "f"}, "old"},
		}, *found, size)
	}
}

func TestLastLineWithoutAnEndIsACommandToo(t *testing.T) {
	var out bytes.Buffer
	s, found := newScanner(&out)
	_, err := s.Write([]byte("x\n::debug::end"))
	require.NoError(t, err)
	require.Empty(t, *found)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.Len(t, *found, 1)
	_, err = s.Write([]byte("::debug::late"))
	require.NoError(t, err)
	require.Equal(t, "x\n::debug::late", out.String(), "of a process that the step has left behind")
}

func TestMemoryOfAScannerIsBounded(t *testing.T) {
	var out bytes.Buffer
	s, found := newScanner(&out)
	part := []byte("::set-output name=x::" + strings.Repeat("y", 4<<20))
	_, err := s.Write(part)
	require.NoError(t, err)
	_, err = s.Write([]byte("\n" + strings.Repeat(" ", 4096)))
	require.NoError(t, err)
	require.LessOrEqual(t, cap(s.held), 8<<20)
	require.NoError(t, s.Close())
	require.Empty(t, *found)
	require.Equal(t, len(part)+1+4096, out.Len())

	line := []byte("::debug::some text\n")
	block := bytes.Repeat(line, 1000)
	allocs := testing.AllocsPerRun(10, func() {
		*found = (*found)[:0]
		_, _ = s.Write(block)
	})
	require.Less(t, allocs, 20_000.0)
	require.Empty(t, s.held)
}

// FuzzScanner holds that text passes unchanged, and that the cuts of the stream do not matter.
func FuzzScanner(f *testing.F) {
	f.Add("a\n::group::x\ny", 3)
	f.Add(" ##[error]x]y\r\n::::", 1)
	f.Fuzz(func(t *testing.T, text string, size int) {
		if size <= 0 || size > len(text) {
			size = 1
		}
		var whole, parts bytes.Buffer
		one, found := newScanner(&whole)
		_, _ = one.Write([]byte(text))
		_ = one.Close()
		many, foundToo := newScanner(&parts)
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			_, _ = many.Write([]byte(rest[:n]))
			rest = rest[n:]
		}
		_ = many.Close()
		require.Equal(t, whole.String(), parts.String())
		require.Equal(t, *found, *foundToo)
		if len(*found) == 0 {
			require.Equal(t, text, whole.String())
		}
	})
}

func TestProblemMatchersFindProblemsInSeveralLines(t *testing.T) {
	list, err := parseMatchers([]byte(`{"problemMatcher": [
		{"owner": "go", "pattern": [{"regexp": "^(.+):(\\d+):(\\d+): (.+)$",
			"file": 1, "line": 2, "column": 3, "message": 4}]},
		{"owner": "eslint", "severity": "warning", "pattern": [
			{"regexp": "^([^\\s].*)$", "file": 1},
			{"regexp": "^\\s+(\\d+):(\\d+)\\s+(error|warning)\\s+(.*)$", "line": 1, "column": 2, "severity": 3,
				"message": 4, "loop": true}
		]}]}`))
	require.NoError(t, err)
	a := list[0].match("main.go:3:7: oops")
	require.Equal(t, "error main.go 3 7 oops", strings.Join([]string{a.Level, a.File, "3 7", a.Message}, " "))
	require.Equal(t, []int{3, 7}, []int{a.Line, a.Column})
	require.Nil(t, list[0].match("fine"))
	require.Nil(t, list[1].match("src/a.js"))
	for line, message := range []string{"  1:2  error  first", "  3:4  warning  second"} {
		a = list[1].match(message)
		require.Equal(t, "src/a.js", a.File)
		require.Equal(t, []string{"error", "warning"}[line], a.Level)
	}
	for text, want := range map[string]string{
		`{}`: "no problem matchers", `[`: "not the JSON",
		`{"problemMatcher":[{"owner":"x","pattern":[{"regexp":"(?=x)"}]}]}`:      "not supported",
		`{"problemMatcher":[{"owner":"x","pattern":[{"regexp":"x","file":1}]}]}`: "has no group 1",
		`{"problemMatcher":[{"owner":"x"}]}`:                                     "1 to 20 patterns",
	} {
		_, err := parseMatchers([]byte(text))
		require.ErrorContains(t, err, want)
	}
}
