package lang

import (
	"slices"
	"strings"

	"github.com/stepmux/stepmux/internal/lazyregexp"
)

// endsEarly reports whether a shell ends a script with the first command that fails: whether the script begins with
// set -e, and keeps it. Before set -e there may be commands that run no program, such as assignments.
func endsEarly(script string) bool {
	begun, off, after, handled, depth := false, false, 0, false, 0
	tokens := withoutFunctions(shellTokens(script))
	for len(tokens) > 0 {
		n := slices.IndexFunc(tokens, isOperator)
		if n < 0 {
			n = len(tokens)
		}
		words := tokens[:n]
		for len(words) > 0 && slices.Contains(opening, words[0]) {
			words = words[1:]
		}
		set := setsErrexit(words)
		switch {
		case set > 0 && depth == 0:
			begun, off = true, false
		case !begun && set == 0 && !runsNothing(words):
			return false
		case set < 0 && depth == 0:
			off, after, handled = true, 0, false
		case len(words) > 0:
			after++
			handled = handled || words[0] == "exit" || strings.Contains(strings.Join(words, " "), "$?")
		}
		if n < len(tokens) {
			switch tokens[n] {
			case "(":
				depth++
			case ")":
				depth--
			}
			n++
		}
		tokens = tokens[n:]
	}
	return begun && (!off || after < 2 || handled)
}

// opening are the words of the shell that a command may follow.
var opening = []string{"if", "then", "elif", "else", "fi", "{", "}", "!"}

// setsErrexit returns 1 for a command that makes the shell end with a command that fails, -1 for one that ends this,
// and 0 for others.
func setsErrexit(words []string) (set int) {
	if len(words) == 0 || words[0] != "set" {
		return 0
	}
	sign := map[byte]int{'-': 1, '+': -1}
	for i := 1; i < len(words); i++ {
		w := words[i]
		if w == "-" || w == "--" || sign[w[0]] == 0 { // the words from here on are positional parameters
			break
		}
		if strings.Contains(w, "e") {
			set = sign[w[0]]
		}
		if strings.Contains(w, "o") && i+1 < len(words) {
			if i++; words[i] == "errexit" {
				set = sign[w[0]]
			}
		}
	}
	return set
}

// settings are the shell's commands that run no program.
var settings = []string{
	":", "true", "set", "shopt", "umask", "trap", "export", "readonly", "declare", "typeset", "unset", "alias", "[", "[[",
	"test",
}

var (
	// assignment matches the beginning of an assignment.
	assignment = lazyregexp.New(`^[A-Za-z_]\w*(\[[^]]*\])?\+?=`)
	// redirection matches the beginning of a redirection.
	redirection = lazyregexp.New(`^(\d*|\{\w+\}|&)[<>]`)
)

// runsNothing reports whether a command runs no program.
func runsNothing(words []string) bool {
	if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(w, "$(") || strings.Contains(w, "`") }) {
		return false
	}
	for len(words) > 0 && assignment().MatchString(words[0]) {
		words = words[1:]
	}
	return len(words) == 0 || slices.Contains(settings, words[0]) ||
		words[0] == "exec" && len(words) > 1 && redirection().MatchString(words[1])
}

// isOperator reports whether a token is an operator of the shell between commands.
func isOperator(token string) bool { return len(token) == 1 && strings.Contains("\n;&|()", token) }

// withoutFunctions removes the definitions of functions.
func withoutFunctions(tokens []string) (rest []string) {
	for i := 0; i < len(tokens); i++ {
		brackets := i+2 < len(tokens) && !isOperator(tokens[i]) && tokens[i+1] == "(" && tokens[i+2] == ")"
		starts := len(rest) == 0 || isOperator(rest[len(rest)-1])
		if !brackets && (tokens[i] != "function" || !starts) {
			rest = append(rest, tokens[i])
			continue
		}
		from := i + 1
		if brackets {
			from += 2
		}
		i = groupEnd(tokens, from)
	}
	return rest
}

// groupEnd returns the index of the end of the first group, in braces or in parentheses, at or after from.
func groupEnd(tokens []string, from int) int {
	open, end, depth := "", "", 0
	for i := from; i < len(tokens); i++ {
		switch t := tokens[i]; {
		case open == "" && t == "{":
			open, end, depth = "{", "}", 1
		case open == "" && t == "(" && i+1 < len(tokens) && tokens[i+1] != ")": // not those after a name
			open, end, depth = "(", ")", 1
		case open != "" && t == open:
			depth++
		case open != "" && t == end:
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return len(tokens)
}

// shellTokens splits a script into words, as they are written, and operators of one byte. Comments and heredocs are
// left out. It reads as much of the shell's language as endsEarly needs.
func shellTokens(script string) (tokens []string) {
	var heredocs []string
	for i := 0; i < len(script); {
		switch c := script[i]; {
		case c == ' ' || c == '\t' || c == '\r':
			i++
		case strings.HasPrefix(script[i:], "\\\n"):
			i += 2
		case c == '#':
			line, _, _ := strings.Cut(script[i:], "\n")
			i += len(line)
		case strings.IndexByte("\n;&|()", c) >= 0 && !strings.HasPrefix(script[i:], "&>"):
			tokens = append(tokens, script[i:i+1])
			if i++; c == '\n' {
				i += skipHeredocs(script[i:], heredocs)
				heredocs = nil
			}
		default:
			n := len(heredoc().FindString(script[i:]))
			if rest := script[i+n:]; n > 0 && !strings.HasPrefix(rest, "<") { // <<< has no text on other lines
				m := wordLength(rest)
				heredocs = append(heredocs, unquoted.Replace(rest[:m]))
				n += m
			} else {
				n += wordLength(rest)
			}
			tokens = append(tokens, script[i:i+n])
			i += n
		}
	}
	return tokens
}

var (
	// heredoc matches the operator of a heredoc, up to the word that ends its text.
	heredoc = lazyregexp.New(`^\d*<<-?[ \t]*`)
	// unquoted removes the quotes of that word.
	unquoted = strings.NewReplacer("'", "", `"`, "", `\`, "")
)

// skipHeredocs returns how many bytes at the beginning of text are the texts of heredocs that end with these words.
func skipHeredocs(text string, ends []string) (n int) {
	for _, end := range ends {
		for n < len(text) {
			line, _, _ := strings.Cut(text[n:], "\n")
			n = min(n+len(line)+1, len(text))
			if strings.Trim(line, "\t\r") == end {
				break
			}
		}
	}
	return n
}

// wordLength returns the length of the word that text begins with.
func wordLength(text string) (n int) {
	for n < len(text) {
		c, before := text[n], byte(' ')
		if n > 0 {
			before = text[n-1]
		}
		redirects := before == '<' || before == '>'
		switch {
		case c == '\\':
			n++
		case c == '\'' || c == '"' || c == '`', c == '{' && before == '$',
			c == '(' && (redirects || before == '$' || before == '='):
			n += enclosed(text[n:])
			continue
		case c == '|' && before == '>', c == '&' && (redirects || strings.HasPrefix(text[n:], "&>")):
		case strings.IndexByte(" \t\n\r;&|()", c) >= 0, n > 0 && !redirects && strings.HasPrefix(text[n:], "<<"):
			return n
		}
		n++
	}
	return min(n, len(text))
}

// enclosed returns the length of the part of text up to the character that closes its first character, such as a quote.
func enclosed(text string) int {
	open, end := text[0], text[0]
	switch open {
	case '(':
		end = ')'
	case '{':
		end = '}'
	}
	depth := 0
	for n := 0; n < len(text); n++ {
		switch c := text[n]; {
		case c == '\\' && open != '\'':
			n++
		case n > 0 && c == end:
			if depth--; depth == 0 {
				return n + 1
			}
		case c == open:
			depth++
		case open != end && (c == '\'' || c == '"'): // the quotes end the same way
			n += enclosed(text[n:]) - 1
		}
	}
	return len(text)
}
