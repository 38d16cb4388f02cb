package mask

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// printer is a program that prints each of its arguments as a shell, a language or XML reads it back.
type printer struct {
	name    string
	command []string // before the arguments
	texts   bool     // it gets only texts without control characters, and writes UTF-8
}

func bash(script string) []string {
	return []string{"bash", "--norc", "-c", "for x; do " + script + "\ndone", "bash"}
}

func python(script string) []string {
	return []string{"python3", "-c", "import html, os, shlex, sys\nimport xml.sax.saxutils as sax\n" +
		"import xml.etree.ElementTree as tree\nfrom xml.dom.minidom import Document\nfor x in sys.argv[1:]:\n " + script}
}

func ruby(script string) []string {
	return []string{"ruby", "-e", `require "shellwords"; require "cgi"; for x in ARGV do ` + script + " end", "--"}
}

var printers = []printer{
	{"trace of bash", bash(`set -x; : "$x" "token: $x;" $'\001'"$x"; y=$x; { set +x; } 2>/dev/null`), false},
	{"printf %q", bash(`printf '%q\n' "$x" "a=$x"`), false},
	{"@Q", bash(`printf '%s\n' "${x@Q}"`), false},
	{"declare -p", bash(`declare -p x; export x; export -p | sed -n '/ x=/,/BB/p'`), false},
	{"set of busybox", []string{
		"busybox", "sh", "-c", `for x; do set | sed -n '/^x=/,/BB/p'; set -x; : "$x"; set +x; done`, "sh",
	}, false},
	{"repr", python(`print(repr(x), repr("'" + x), repr('"' + x), repr("'\"" + x))`), false},
	{"ascii", python(`print(ascii(x), ascii("'" + x))`), false},
	{"bytes", python(`print(os.fsencode(x), b"'" + os.fsencode(x), b"'\"" + os.fsencode(x))`), false},
	{"shlex", python(`print(shlex.quote(x))`), false},
	{"html", python(`print(html.escape(x), html.escape(x, quote=False))`), false},
	{"saxutils", python(`print(sax.escape(x), sax.quoteattr(x), sax.quoteattr("'\"" + x))`), false},
	{"ElementTree", python(`e = tree.Element("a", b=x); e.text = x; ` +
		`print(tree.tostring(e).decode(), tree.tostring(e, "unicode"))`), true},
	{"minidom", python(`d = Document(); e = d.createElement("a"); e.setAttribute("b", x); ` +
		`e.appendChild(d.createTextNode(x)); print(e.toxml())`), false},
	{"inspect", ruby(`p x, [x], {"a" => x}`), false},
	{"dump", ruby(`puts x.dump`), false},
	{"bytes of Ruby", ruby(`p x.b`), false},
	{"Shellwords", ruby(`puts x.shellescape`), true},
	{"XML of Ruby", ruby(`puts CGI.escapeHTML(x), x.encode(xml: :text), x.encode(xml: :attr)`), true},
	{"log of node", []string{
		"node", "-e", `for (const x of process.argv.slice(1)) console.log([x], [x + "'"], [x + "'\""])`, "--",
	}, true},
}

// quoted are secrets that programs quote.
var quoted = []string{
	"it's", "pass word", `back\slash`, `dou"ble`, `all 'of" th\em`, "$HOME`id`!{a,b}", "#!~[x]*?", "~user;&|<>^()",
	"a:~b=~c#", "tab\tnew\nline\r.", "ctrl\x01\x07\x08\x0b\x0c\x1b\x7f", "#{ruby} #$x #@y", "é€ü", "smile😀",
	"\u00a0\u2028\u200b\u00ad", "<a href='x'>&amp;\"</a>", "line 'one'\nline \"two\"\n\nline <3>&.",
	"broken\xff\xfe\xc3", "comma,x=%y", "two\n\"lines\"", "'quotes''at the edges'", "mixed\xffé'\"\\\n.",
}

// print returns what p prints for arguments. The test skips without the program.
func (p printer) print(t *testing.T, locale string, arguments []string) string {
	t.Helper()
	if _, err := exec.LookPath(p.command[0]); err != nil {
		require.NotEqual(t, "1", os.Getenv("STEPMUX_REQUIRE_PARTS"), err)
		t.Skipf("part missing: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), p.command[0], slices.Concat(p.command[1:], arguments)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=" + locale, "PYTHONIOENCODING=utf-8:surrogateescape"}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// takes reports whether p can print secret.
func (p printer) takes(secret string) bool {
	return !p.texts || utf8.ValidString(secret) && !strings.ContainsFunc(secret, func(c rune) bool {
		return c < ' ' || c == 0x7f
	})
}

var between = regexp.MustCompile(`(?s)AA(.*?)BB`)

// requireHidden requires that p prints the secrets in spellings that a Set knows.
func (p printer) requireHidden(t *testing.T, locale string, secrets ...string) {
	t.Helper()
	s := newSet(t, secrets...)
	var alone, within []string
	for _, secret := range secrets {
		if p.takes(secret) {
			alone, within = append(alone, secret), append(within, "AA"+secret+"BB")
		}
	}
	if len(alone) == 0 {
		return
	}
	out := p.print(t, locale, within)
	all := between.FindAllStringSubmatch(s.Mask(out), -1)
	require.GreaterOrEqual(t, len(all), len(within), "%s", out)
	for _, m := range all {
		require.Equal(t, Replacement, m[1], "%q", out)
	}
	// A secret that is a whole word may have its beginning and its end spelled in another way.
	out = p.print(t, locale, alone)
	require.GreaterOrEqual(t, strings.Count(s.Mask(out), Replacement), len(alone), "%q", s.Mask(out))
}

// Symptom: a script with set -x, or a program that printed a value with quotes, showed a secret that has a quote, a
// backslash, a space or a newline in it.
//
//stepmux:faults users | A secret is shown as shells, Python, Ruby or XML quote it
//stepmux:with remote/step/mask.FuzzQuoted
func TestSecretsAreReplacedAsShellsLanguagesAndXMLQuoteThem(t *testing.T) {
	for _, p := range printers {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			p.requireHidden(t, "C.UTF-8", quoted...)
			if !p.texts {
				p.requireHidden(t, "C", quoted...)
			}
		})
	}
}

func TestShortLinesOfASecretAreNotMaskedAsTheyAreQuoted(t *testing.T) {
	s := newSet(t, "{\n&\n\"a\"\n<<<\n}\nlong enough")
	for _, text := range []string{`"\"a\""`, "&amp;", "&lt;&lt;&lt;", `{\n`} {
		require.Equal(t, text, s.Mask(text))
	}
}

// FuzzQuoted compares a spelling with that of a program. Each input starts one program only: an input that takes 10 s,
// as all programs can on a busy machine, counts as hung.
func FuzzQuoted(f *testing.F) {
	for i := range printers {
		f.Add(uint8(i), `all 'of" th\em`+"\n<é😀>") // the test above has more
	}
	f.Fuzz(func(t *testing.T, program uint8, secret string) {
		if len(secret) < minLen || len(secret) > 200 || strings.Trim(secret, "\r\n") != secret {
			return // a Set takes no newlines there
		}
		if strings.ContainsAny(secret, "\x00AB") {
			return // programs take no NUL, and A and B mark the ends
		}
		if strings.ContainsFunc(secret, func(c rune) bool { return c >= utf8.RuneSelf && !unicode.IsGraphic(c) }) {
			return // each program has its own table of what can be printed
		}
		printers[int(program)%len(printers)].requireHidden(t, "C.UTF-8", secret)
	})
}
