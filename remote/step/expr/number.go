package expr

import (
	"errors"
	"strconv"
)

func (p *parser) number() (node, error) {
	start := p.pos
	p.pos += numberLen(p.text[p.pos:p.end])
	if isLetter(p.peek()) {
		return nil, p.errorAt(start, "this is not a number").withHint("numbers are written 42, 3.14 or 1.5e3")
	}
	f, err := strconv.ParseFloat(p.text[start:p.pos], 64)
	if err != nil {
		return nil, p.errorAt(start, "the number is too large")
	}
	return &constant{number(f)}, nil
}

// numberLen returns the length of the number at the beginning of s: digits, digits after a point, an exponent.
func numberLen(s string) int {
	digits := func(i int) int {
		for i < len(s) && isDigit(s[i]) {
			i++
		}
		return i
	}
	n := digits(0)
	if n < len(s) && s[n] == '.' {
		if i := digits(n + 1); i > n+1 {
			n = i
		}
	}
	if n < len(s) && (s[n] == 'e' || s[n] == 'E') {
		i := n + 1
		if i < len(s) && (s[i] == '+' || s[i] == '-') {
			i++
		}
		if j := digits(i); j > i {
			n = j
		}
	}
	return n
}

// parseNumber reads a number as in an expression, with an optional sign.
func parseNumber(s string) (float64, error) {
	unsigned := s
	if s != "" && (s[0] == '-' || s[0] == '+') {
		unsigned = s[1:]
	}
	if n := numberLen(unsigned); n == 0 || n != len(unsigned) {
		return 0, errors.New("the text is not a number such as 42, -3.14 or 1.5e3")
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, errors.New("the number is too large")
	}
	return f, nil
}
