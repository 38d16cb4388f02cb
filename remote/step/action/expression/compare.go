package expression

import (
	"cmp"
	"math"
	"strconv"
	"strings"
	"unicode"

	"github.com/stepmux/stepmux/internal/lazyregexp"
)

func upperRune(c rune) rune {
	if c == 'ı' || c == 'ſ' {
		return c
	}
	return unicode.ToUpper(c)
}

// coerce converts both values to one kind, if they can be converted.
func coerce(a, b Value) (left, right Value) {
	ka, kb := a.Kind(), b.Kind()
	switch {
	case ka == kb:
		return a, b
	case ka == "Number" && kb == "String":
		return a, Number(b.number())
	case ka == "String" && kb == "Number":
		return Number(a.number()), b
	case ka == "Boolean" || ka == "Null":
		return coerce(Number(a.number()), b)
	case kb == "Boolean" || kb == "Null":
		return coerce(a, Number(b.number()))
	default:
		return a, b
	}
}

func equal(a, b Value) bool {
	a, b = coerce(a, b)
	if a.Kind() != b.Kind() {
		return false
	}
	if s, ok := a.any.(string); ok {
		return upper(s) == upper(b.Text())
	}
	return a.any == b.any // arrays and objects are compared by identity; NaN is not equal to itself
}

func greater(a, b Value) bool { return ordering(a, b) > 0 }

func less(a, b Value) bool { return ordering(a, b) < 0 }

// ordering is negative if a is less than b, positive if it is greater, and 0 otherwise.
func ordering(a, b Value) int {
	a, b = coerce(a, b)
	if a.Kind() != b.Kind() {
		return 0
	}
	switch x := a.any.(type) {
	case string:
		return strings.Compare(upper(x), upper(b.Text()))
	case float64:
		y := b.number()
		if math.IsNaN(x) || math.IsNaN(y) {
			return 0
		}
		return cmp.Compare(x, y)
	case bool:
		return cmp.Compare(a.number(), b.number())
	default:
		return 0
	}
}

var (
	decimal     = lazyregexp.New(`^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$`)
	hexadecimal = lazyregexp.New(`^0x[0-9a-fA-F]{1,8}$`)
	octal       = lazyregexp.New(`^0o[0-7]{1,11}$`)
)

// parseNumber converts a text to a number, or to NaN. Numbers in hexadecimal and octal have 32 bits and a sign.
func parseNumber(s string) float64 {
	s = strings.TrimSpace(s)
	switch {
	case s == "":
		return 0
	case decimal().MatchString(s):
		f, _ := strconv.ParseFloat(s, 64) // infinite if it is too large
		return f
	case s == "Infinity" || s == "+Infinity":
		return math.Inf(1)
	case s == "-Infinity":
		return math.Inf(-1)
	}
	base := 0
	if hexadecimal().MatchString(s) {
		base = 16
	} else if octal().MatchString(s) {
		base = 8
	}
	if base != 0 {
		if n, err := strconv.ParseUint(s[2:], base, 32); err == nil {
			return float64(int32(n)) // the runner's number wraps around, too
		}
	}
	return math.NaN()
}

// digits is the number of significant digits in the text of a number.
const digits = 15

// formatNumber prints a number with 15 significant digits, as .NET's format G15 does.
func formatNumber(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	case f == 0:
		return "0"
	}
	mantissa, exponent, _ := strings.Cut(strconv.FormatFloat(f, 'E', digits-1, 64), "E")
	mantissa = strings.TrimSuffix(strings.TrimRight(mantissa, "0"), ".")
	e, _ := strconv.Atoi(exponent)
	if e >= digits || e < -4 {
		return mantissa + "E" + exponent
	}
	fixed := strconv.FormatFloat(f, 'f', max(digits-1-e, 0), 64)
	if strings.Contains(fixed, ".") {
		fixed = strings.TrimSuffix(strings.TrimRight(fixed, "0"), ".")
	}
	return fixed
}
