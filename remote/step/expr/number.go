package expr

import (
	"errors"
	"strconv"
	"strings"

	"github.com/stepmux/stepmux/internal/lazyregexp"
)

// numberForm finds a number at the beginning of a text: digits, digits after a point, an exponent.
var numberForm = lazyregexp.New(`^[0-9]*(\.[0-9]+)?([eE][+-]?[0-9]+)?`)

func (p *parser) number() node {
	start := p.pos
	digits := numberForm().FindString(p.text[p.pos:p.end])
	if p.pos += len(digits); isLetter(p.peek()) {
		p.pos = start
		panic(p.errorAt(start, "%s is not a number", Abbreviate(p.token())).withHint("numbers are written 42, 3.14 or 1.5e3"))
	}
	f, err := parseNumber(digits)
	if err != nil {
		panic(p.errorAt(start, "%s", err.Error()))
	}
	return &constant{number(f)}
}

// parseNumber reads a number as in an expression, with an optional sign.
func parseNumber(s string) (float64, error) {
	unsigned := s
	if strings.HasPrefix(s, "-") || strings.HasPrefix(s, "+") {
		unsigned = s[1:]
	}
	if unsigned == "" || numberForm().FindString(unsigned) != unsigned {
		return 0, errors.New("the text is not a number such as 42, -3.14 or 1.5e3")
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, errors.New("the number is too large")
	}
	return f, nil
}
