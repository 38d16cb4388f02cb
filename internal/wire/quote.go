package wire

import (
	"fmt"
	"slices"
	"strings"
)

// reservedWords are the reserved words of POSIX shells (XCU 2.4), bash and zsh.
var reservedWords = []string{
	"if", "then", "else", "elif", "fi", "do", "done", "case",
	"esac", "while", "until", "for", "in", "function", "select",
	"time", "coproc", "repeat", "foreach", "end", "nocorrect",
}

// Quote joins argv into one command line that a POSIX shell splits into exactly argv again
// (POSIX.1-2017, XCU 2.2). sshd hands the line to the user's login shell, so every command line must
// come from Quote. Arguments with a NUL byte, which no process can receive, and an empty argv are errors.
func Quote(argv ...string) (string, error) {
	if len(argv) == 0 {
		return "", fmt.Errorf("quote command: no arguments")
	}
	var b strings.Builder
	for i, arg := range argv {
		if strings.IndexByte(arg, 0) >= 0 {
			return "", fmt.Errorf("quote command: argument %d (%q) has a NUL byte", i, clip(arg))
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		quoteTo(&b, arg, i == 0)
	}
	return b.String(), nil
}

// quoteTo writes arg: unquoted if every byte is harmless to any shell, otherwise in single quotes. If arg is the
// command, it also quotes a reserved word.
func quoteTo(b *strings.Builder, arg string, command bool) {
	bare := arg != "" && (!command || !slices.Contains(reservedWords, arg))
	for i := 0; i < len(arg) && bare; i++ {
		c := arg[i]
		// No "=": zsh expands a leading one, and before the command word it is an assignment.
		bare = buildIDByte(c) || c == '/' || c == '+' || c == ':' || c == '@' || c == ','
	}
	if bare {
		b.WriteString(arg)
		return
	}
	b.WriteByte('\'')
	b.WriteString(strings.ReplaceAll(arg, "'", `'"'"'`)) // not '\'': fish takes a \' inside of quotes for a quote
	b.WriteByte('\'')
}
