package mask

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// spelling is a way in which programs write a text so that a shell, a language or XML reads it back. It has no quotes
// around the text, because a secret may be a part of a longer text. Its fields are data without code, to keep the VM's
// end small.
type spelling struct {
	escaped string   // ASCII characters that get a backslash
	letters string   // pairs: a control character, and the letter that stands for it after a backslash
	marks   []string // pairs: another ASCII character, and how it is written
	// others returns how any other character is written. raw are its bytes. For a byte that is not UTF-8, c is
	// utf8.RuneError. If nil, they stay as they are.
	others func(c rune, raw string) string
	after  []string // pairs: a text in the result, and its replacement
	edge   string   // what the result does not have at its beginning and its end
}

// of returns text in the spelling.
func (s *spelling) of(text string) string {
	var b strings.Builder
	for rest := text; rest != ""; {
		c, n := utf8.DecodeRuneInString(rest)
		b.WriteString(s.one(c, rest[:n]))
		rest = rest[n:]
	}
	spelled := b.String()
	for i := 0; i < len(s.after); i += 2 {
		spelled = strings.ReplaceAll(spelled, s.after[i], s.after[i+1])
	}
	return strings.TrimSuffix(strings.TrimPrefix(spelled, s.edge), s.edge)
}

// one returns how the character c, with the bytes raw, is written.
func (s *spelling) one(c rune, raw string) string {
	if strings.Contains(s.escaped, raw) {
		return `\` + raw
	}
	if i := strings.Index(s.letters, raw); i >= 0 && i%2 == 0 {
		return `\` + s.letters[i+1:i+2]
	}
	for i := 0; i < len(s.marks); i += 2 {
		if s.marks[i] == raw {
			return s.marks[i+1]
		}
	}
	if s.others != nil {
		return s.others(c, raw)
	}
	return raw
}

// isPrint reports whether a character is printed as it is.
func isPrint(c rune, raw string) bool {
	return strconv.IsPrint(c) && (c != utf8.RuneError || len(raw) > 1)
}

// isPrintASCII reports whether a character is one of ASCII that is printed as it is.
func isPrintASCII(c rune) bool { return c >= ' ' && c < unicode.MaxASCII }

// eachByte writes the bytes of the characters that are not ASCII, or not printed, by format.
func eachByte(format string, c rune, raw string) string {
	if isPrintASCII(c) {
		return raw
	}
	text := ""
	for _, one := range []byte(raw) {
		text += fmt.Sprintf(format, one)
	}
	return text
}

// octal is how $'...' has bytes in the locale C.
func octal(c rune, raw string) string { return eachByte(`\%03o`, c, raw) }

// octalInUTF8 is octal in a locale of UTF-8: the C library takes most characters for printed ones.
func octalInUTF8(c rune, raw string) string {
	if len(raw) > 1 && c >= 0xa0 && c != '\u2028' && c != '\u2029' {
		return raw
	}
	return octal(c, raw)
}

// pythonText is how repr writes a text.
func pythonText(c rune, raw string) string {
	if isPrint(c, raw) {
		return raw
	}
	return pythonASCII(c, raw)
}

// pythonASCII is how the function ascii writes a text.
func pythonASCII(c rune, raw string) string {
	switch {
	case isPrintASCII(c):
		return raw
	case c == utf8.RuneError && len(raw) == 1:
		return fmt.Sprintf(`\udc%02x`, raw[0])
	case c <= 0xff:
		return fmt.Sprintf(`\x%02x`, c)
	case c <= 0xffff:
		return fmt.Sprintf(`\u%04x`, c)
	default:
		return fmt.Sprintf(`\U%08x`, c)
	}
}

// pythonBytes is how repr writes bytes.
func pythonBytes(c rune, raw string) string { return eachByte(`\x%02x`, c, raw) }

// rubyText is how inspect writes a text.
func rubyText(c rune, raw string) string {
	switch {
	case isPrint(c, raw):
		return raw
	case c < utf8.RuneSelf:
		return fmt.Sprintf(`\u%04X`, c)
	default:
		return rubyASCII(c, raw)
	}
}

// rubyASCII is how dump writes a text.
func rubyASCII(c rune, raw string) string {
	switch {
	case len(raw) == 1:
		return rubyBytes(c, raw)
	case c <= 0xffff:
		return fmt.Sprintf(`\u%04X`, c)
	default:
		return fmt.Sprintf(`\u{%X}`, c)
	}
}

// rubyBytes is how inspect writes a text whose encoding is not known.
func rubyBytes(c rune, raw string) string { return eachByte(`\x%02X`, c, raw) }

// shellWord is how Ruby's Shellwords writes characters.
func shellWord(c rune, raw string) string {
	if isWord(c) || c == ',' {
		return raw
	}
	return `\` + raw
}

// reference writes a character beyond ASCII as its number in XML.
func reference(c rune, raw string) string {
	if len(raw) == 1 {
		return raw
	}
	return fmt.Sprintf("&#%d;", c)
}

// isWord reports whether all programs write the ASCII character c as it is.
func isWord(c rune) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.ContainsRune("_-./:+@", c)
}

const (
	whitespace = "\tt\nn\rr"
	controls   = whitespace + "\aa\bb\vv\ff"
)

var (
	expression = []string{"#{", `\#{`, "#$", `\#$`, "#@", `\#@`}

	// bashWord is how bash's printf %q writes a word without control characters.
	bashWord = spelling{escaped: " \t!\"$&'()*,;<>?[\\]^`{|}", after: []string{":~", `:\~`, "=~", `=\~`}}

	spellings = [...]spelling{
		// Shells: the trace of bash (set -x) and ${x@Q}; Python's shlex; the trace and the variables of busybox; $'...', for
		// control characters and, in the locale C, for all beyond ASCII; declare -p and export -p; Ruby's Shellwords.
		{marks: []string{"'", `'\''`}},
		{marks: []string{"'", `'"'"'`}},
		{marks: []string{"'", `'"'"'`}, after: []string{`"''"`, ""}},
		{marks: []string{"'", `'"'"'`}, after: []string{`"''"`, ""}, edge: "'"},
		{escaped: `\'`, letters: controls + "\x1bE", others: octalInUTF8},
		{escaped: `\'`, letters: controls + "\x1bE", others: octal},
		{escaped: "\"$\\`"},
		{marks: []string{"\n", "'\n'"}, others: shellWord},
		// Python: repr and ascii of a text, and repr of bytes. The quotes around a text decide about those in it.
		{escaped: `\'`, letters: whitespace, others: pythonText},
		{escaped: `\'`, letters: whitespace, others: pythonASCII},
		{escaped: `\'`, letters: whitespace, others: pythonBytes},
		{escaped: `\`, letters: whitespace, others: pythonText},
		{escaped: `\`, letters: whitespace, others: pythonASCII},
		{escaped: `\`, letters: whitespace, others: pythonBytes},
		// Ruby: inspect, dump, and inspect of a text whose encoding is not known.
		{escaped: `\"`, letters: controls + "\x1be", others: rubyText, after: expression},
		{escaped: `\"`, letters: controls + "\x1be", others: rubyASCII, after: expression},
		{escaped: `\"`, letters: controls + "\x1be", others: rubyBytes, after: expression},
		// XML and HTML: texts, and values of attributes.
		{marks: []string{"&", "&amp;", "<", "&lt;", ">", "&gt;"}},
		{marks: []string{"&", "&amp;", "<", "&lt;", ">", "&gt;", "\r", "&#13;"}, others: reference},
		{marks: []string{"&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;"}},
		{marks: []string{"&", "&amp;", "<", "&lt;", ">", "&gt;", "\t", "&#9;", "\n", "&#10;", "\r", "&#13;"}},
		{marks: []string{
			"&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;", "\t", "&#9;", "\n", "&#10;", "\r", "&#13;",
		}},
		{marks: []string{
			"&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;", "\t", "&#9;", "\n", "&#10;", "\r", "&#13;",
		}, others: reference},
		{marks: []string{"&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;", "'", "&apos;"}},
		{marks: []string{"&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;", "'", "&#39;"}},
		{marks: []string{"&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;", "'", "&#039;"}},
		{marks: []string{"&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;", "'", "&#x27;"}},
		{marks: []string{"&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;"}},
		{marks: []string{
			"&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;", "\t", "&#x9;", "\n", "&#xA;", "\r", "&#xD;",
		}},
	}
)

// appendQuoted adds secret in the spellings of shells, Python, Ruby and XML.
func appendQuoted(all []string, secret string) []string {
	if !strings.ContainsFunc(secret, func(c rune) bool { return !isWord(c) }) {
		return all
	}
	word := bashWord.of(secret)
	all = append(all, word)
	if secret[0] == '#' || secret[0] == '~' { // bash escapes these at the beginning of a word
		all = append(all, `\`+word)
	}
	for i := range spellings {
		all = append(all, spellings[i].of(secret))
	}
	return all
}
