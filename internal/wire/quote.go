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

// LoginLine joins argv into one command line for a login shell, to which sshd hands it. The line has no newline, and
// every POSIX shell, csh, tcsh and fish split it into exactly argv again. argv[0] is a program, no builtin of a shell.
// Arguments with a NUL byte, which no process can receive, and an empty argv are errors.
func LoginLine(argv ...string) (string, error) {
	if !slices.ContainsFunc(argv, func(arg string) bool { return strings.Contains(arg, "\n") }) {
		return Quote(argv...)
	}
	// csh takes no newline in a word, however it is quoted. A sh joins the words again that are sent line by line.
	joined := []string{"sh", "-c", joinLines, "sh"}
	for _, arg := range argv {
		for i, line := range strings.Split(arg, "\n") {
			joined = append(joined, ".+"[min(i, 1):min(i, 1)+1]+line)
		}
	}
	return Quote(joined...)
}

// joinLines runs the command whose words are its arguments: "." begins a word, "+" another line of it.
const joinLines = `_n=$(echo;echo .);_n=${_n%.};_c=$#;_w=;for _l;do case $_l in .*)set -- "$@" "$_w";_w=${_l#.};;` +
	`*)_w=$_w$_n${_l#+};;esac;done;set -- "$@" "$_w";shift $((_c+1));exec "$@"`

// Quote joins argv into one command line that a POSIX shell splits into exactly argv again (POSIX.1-2017, XCU 2.2).
// csh, tcsh and fish do so, too, unless an argument has a newline: lines for login shells come from LoginLine.
// Arguments with a NUL byte, which no process can receive, and an empty argv are errors.
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
	b.WriteString(outside.Replace(arg))
	b.WriteByte('\'')
}

// outside puts the characters that are special in single quotes outside of them: ' in all shells, ! in csh, \ in fish.
var outside = strings.NewReplacer(`'`, `'"'"'`, `\`, `'\\'`, `!`, `'\!'`)
