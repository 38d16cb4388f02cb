package gitlabci

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// condition is a parsed if: of rules. Its language is GitLab's: $NAME, texts in quotes, null, /regex/flags, ==, !=, =~,
// !~, &&, || and parentheses.
type condition struct {
	op          string // an operator; empty for an operand
	left, right *condition

	name string // name of a variable; empty for other operands
	operand
}

// operand is a value in a condition. The zero value is null.
type operand struct {
	text  *string
	regex *regexp.Regexp
	yes   *bool // the result of a comparison
}

func textOperand(text string) operand { return operand{text: &text} }
func boolOperand(yes bool) operand    { return operand{yes: &yes} }

// isSet reports whether an operand counts as true for && and ||. As with GitLab, an empty text does.
func (o operand) isSet() bool {
	if o.yes != nil {
		return *o.yes
	}
	return o.text != nil || o.regex != nil
}

// holds reports whether the result o makes a whole condition true. A blank text does not.
func (o operand) holds() bool {
	if o.text != nil {
		return strings.TrimSpace(*o.text) != ""
	}
	return o.isSet()
}

func (o operand) string() string {
	if o.text == nil {
		return ""
	}
	return *o.text
}

// eval computes c. value returns the value of a variable, and whether the variable exists.
func (c *condition) eval(value func(name string) (string, bool)) operand {
	if c.name != "" {
		if text, ok := value(c.name); ok {
			return textOperand(text)
		}
		return operand{}
	}
	if c.op == "" {
		return c.operand
	}
	left := c.left.eval(value)
	switch {
	case c.op == "&&" && !left.isSet() || c.op == "||" && left.isSet():
		return left
	case c.op == "&&" || c.op == "||":
		return c.right.eval(value)
	}
	right := c.right.eval(value)
	switch c.op {
	case "==":
		return boolOperand(left.equal(right))
	case "!=":
		return boolOperand(!left.equal(right))
	case "=~":
		return boolOperand(left.matches(right))
	default:
		return boolOperand(!left.matches(right))
	}
}

func (o operand) equal(other operand) bool {
	switch {
	case o.text != nil && other.text != nil:
		return *o.text == *other.text
	case o.yes != nil && other.yes != nil:
		return *o.yes == *other.yes
	default:
		return o == operand{} && other == operand{}
	}
}

// matches reports whether o matches a pattern: a regex, or a text that contains one, such as the value of a variable.
// As with GitLab, any other text matches if it is a part of o.
func (o operand) matches(pattern operand) bool {
	if pattern.regex == nil && pattern.text != nil {
		whole := *pattern.text
		if regex, rest, err := readRegex(whole); err == nil && rest == "" {
			pattern.regex = regex
		} else {
			return strings.Contains(whole, o.string())
		}
	}
	return pattern.regex != nil && pattern.regex.MatchString(o.string())
}

// readRegex reads /regex/flags at the beginning of text, and returns the rest of text. The time of a match is
// proportional to the length of the matched text.
func readRegex(text string) (regex *regexp.Regexp, rest string, err error) {
	inner, ok := strings.CutPrefix(text, "/")
	if !ok {
		return nil, text, errNoRegex
	}
	end := 0
	for end < len(inner) && inner[end] != '/' {
		if inner[end] == '\\' {
			end++
		}
		end++
	}
	if end == 0 || end >= len(inner) {
		return nil, text, errNoRegex
	}
	rest = strings.TrimLeft(inner[end+1:], "ismU")
	flags := inner[end+1 : len(inner)-len(rest)]
	source := strings.ReplaceAll(inner[:end], `\/`, "/")
	if flags != "" {
		source = "(?" + flags + ")" + source
	}
	if regex, err = regexp.Compile(source); err != nil {
		return nil, text, fmt.Errorf("the regex is not valid: %w", bare(err))
	}
	return regex, rest, nil
}

// errNoRegex is the error for a text that does not begin with a whole regex.
var errNoRegex = errors.New("a regex stands between two slashes, as in /^v[0-9]/")

const (
	// maxTokens bounds the words and operators in a condition.
	maxTokens = 1000
	// maxCondition bounds the length of a condition, in bytes.
	maxCondition = 32 << 10
)

// conditionReader parses a condition. It keeps the first mistake.
type conditionReader struct {
	all, rest string
	token     string // the next operator or parenthesis; "operand" for an operand, empty at the end
	at        int    // the place of the token in all
	next      condition
	tokens    int
	err       error
}

// parseCondition parses text. The error has the place of the mistake in text.
func parseCondition(text string) (*condition, error) {
	if len(text) > maxCondition {
		return nil, fmt.Errorf("the condition has more than %d bytes", maxCondition)
	}
	r := &conditionReader{all: text, rest: text}
	r.advance()
	c := r.either()
	if r.token != "" {
		r.fail("an operator (&&, ||, ==, !=, =~, !~) is missing before %.64q", r.here())
	}
	return c, r.err
}

// here returns the next token as it is in the text, or an empty text at the end.
func (r *conditionReader) here() string { return r.all[r.at : len(r.all)-len(r.rest)] }

// before returns the end of an error about a missing part before the next token.
func (r *conditionReader) before() string {
	if r.here() == "" {
		return " at the end"
	}
	return fmt.Sprintf(" before %.64q", r.here())
}

// fail keeps a mistake at the next token.
func (r *conditionReader) fail(format string, args ...any) {
	if r.err == nil {
		at := len([]rune(r.all[:r.at])) + 1
		r.err = fmt.Errorf("at character %d of the condition: %s", at, fmt.Sprintf(format, args...))
	}
	r.token, r.rest = "", ""
}

// advance reads the next token.
func (r *conditionReader) advance() {
	r.token, r.next = "", condition{}
	r.rest = strings.TrimLeft(r.rest, " \t\r\n\v\f")
	r.at = len(r.all) - len(r.rest)
	if r.rest == "" || r.err != nil {
		return
	}
	if r.tokens++; r.tokens > maxTokens {
		r.fail("the condition has more than %d words and operators", maxTokens)
		return
	}
	for _, op := range []string{"==", "!=", "=~", "!~", "&&", "||", "(", ")"} {
		if rest, ok := strings.CutPrefix(r.rest, op); ok {
			r.token, r.rest = op, rest
			return
		}
	}
	if r.readOperand(); r.err == nil {
		r.token = "operand"
	}
}

func (r *conditionReader) readOperand() {
	first, inner := r.rest[0], r.rest[1:]
	switch {
	case first == '$':
		n := 0
		for n < len(inner) && isWord(inner[n]) {
			n++
		}
		if n == 0 {
			r.fail("the name of a variable is missing after $; write $NAME, without braces")
			return
		}
		r.next.name, r.rest = inner[:n], inner[n:]
	case first == '"' || first == '\'':
		text, rest, closed := strings.Cut(inner, string(first))
		if !closed {
			r.fail("the text is not closed; end it with %c", first)
			return
		}
		r.next.operand, r.rest = textOperand(text), rest
	case first == '/':
		regex, rest, err := readRegex(r.rest)
		if err != nil {
			r.fail("%v", err)
			return
		}
		r.next.operand, r.rest = operand{regex: regex}, rest
	case strings.HasPrefix(r.rest, "null") && (len(r.rest) == 4 || !isWord(r.rest[4])):
		r.rest = r.rest[4:]
	case isWord(first):
		r.rest = strings.TrimLeftFunc(r.rest, func(c rune) bool { return c < utf8.RuneSelf && isWord(byte(c)) })
		r.fail("%.64q is neither a text in quotes nor the name of a variable, which begins with $", r.here())
	default:
		c, _ := utf8.DecodeRuneInString(r.rest)
		r.fail("%q is not part of a condition", c)
	}
}

func isWord(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// either reads operands of ||.
func (r *conditionReader) either() *condition { return r.chain(r.both, "||") }

// both reads operands of &&.
func (r *conditionReader) both() *condition { return r.chain(r.comparison, "&&") }

func (r *conditionReader) comparison() *condition { return r.chain(r.single, "==", "!=", "=~", "!~") }

func (r *conditionReader) chain(read func() *condition, ops ...string) *condition {
	c := read()
	for slices.Contains(ops, r.token) {
		op := r.token
		r.advance()
		c = &condition{op: op, left: c, right: read()}
	}
	return c
}

// single reads an operand, or a condition in parentheses.
func (r *conditionReader) single() *condition {
	switch r.token {
	case "operand":
		c := r.next
		r.advance()
		return &c
	case "(":
		r.advance()
		c := r.either()
		if r.token != ")" {
			r.fail("a closing parenthesis is missing%s", r.before())
		}
		r.advance()
		return c
	default:
		r.fail("a variable, a text, a regex or null is missing%s", r.before())
		return &condition{}
	}
}
