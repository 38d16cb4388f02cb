package termtext_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/termtext"
)

func TestLogLineKeepsColoursAndNothingElseThatATerminalObeys(t *testing.T) {
	for line, want := range map[string]string{
		"plain\tü":                   "plain\tü",
		"windows\r":                  "windows",
		"\x1b[1;31mred\x1b[m":        "\x1b[1;31mred\x1b[m\x1b[0m",
		"\x1b[38:5:1mred":            "\x1b[38:5:1mred\x1b[0m",
		"10%\r20%":                   `10%\r20%`,
		"a\x1b[2K\x1b[1Gb-2 | x":     `a\x1b[2K\x1b[1Gb-2 | x`,
		"\x1b]0;title\a":             `\x1b]0;title\a`,
		"\x1b]8;;http://x\x1b\\link": `\x1b]8;;http://x\x1b\link`,
		"\u009b2K\xff\u202e":         `\u009b2K\xff\u202e`,
		"\x1b[31":                    `\x1b[31`,
		"\x1b[?25l\x1bM\b\v":         `\x1b[?25l\x1bM\b\v`,
	} {
		require.Equal(t, "b | "+want, string(termtext.LogLine([]byte("b | "), []byte(line))), "%q", line)
	}
	require.Equal(t, "a red\tb", string(termtext.PlainLine([]byte("a "), []byte("\x1b[1;31mred\x1b[m\tb\r"))))
}
