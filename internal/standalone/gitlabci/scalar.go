package gitlabci

import (
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The tags of scalars.
const (
	tagNull  = "!!null"
	tagBool  = "!!bool"
	tagInt   = "!!int"
	tagFloat = "!!float"
	tagText  = "!!str"
)

// The patterns by which psych, Ruby's reader of YAML, tells texts from other scalars. They are those of psych 5.
var (
	nullWord = regexp.MustCompile(`(?im)^null$`)
	yesWord  = regexp.MustCompile(`(?im)^(yes|true|on)$`)
	noWord   = regexp.MustCompile(`(?im)^(no|false|off)$`)
	notAWord = regexp.MustCompile(`(?im)^[^ytonf~]`)
	dateOnly = regexp.MustCompile(`^\d{4}-(1[012]|0\d|\d)-([12]\d|3[01]|0\d|\d)$`)
	dateTime = regexp.MustCompile(`^-?\d{4}-\d{1,2}-\d{1,2}([Tt]|\s+)\d{1,2}:\d\d:\d\d(\.\d*)?` +
		`(\s*(Z|[-+]\d{1,2}:?(\d\d)?))?$`)
	infinite = regexp.MustCompile(`(?i)^[-+]?\.inf$`)
	notANum  = regexp.MustCompile(`(?i)^\.nan$`)
	base60   = regexp.MustCompile(`^[-+]?[0-9][0-9_]*(:[0-5]?[0-9]){1,2}(\.[0-9_]*)?$`)
	decimal  = regexp.MustCompile(`^[-+]?([0-9][0-9_,]*)?\.[0-9]*([eE][-+][0-9]+)?$`)
	integer  = regexp.MustCompile(`^[-+]?(0b[_,]*[01][01_,]*|0[_,]*[0-7][0-7_,]*|0|[1-9]([0-9]|,[0-9]|_[0-9])*` +
		`|0x[_,]*[0-9a-fA-F][0-9a-fA-F_,]*)$`)
	digits = regexp.MustCompile(`^[-+]?[0-9]+(_[0-9]+)*(\.[0-9]+(_[0-9]+)*)?`) // that Ruby's to_i and to_f read
)

var (
	separators    = strings.NewReplacer("_", "", ",", "")
	bareExponents = strings.NewReplacer(".e", "e", ".E", "E")
)

// readScalar reads a scalar without quotes and tag as GitLab's server does, which is written in Ruby: by the rules of
// psych. It returns the tag of the value, and the value as Ruby's to_s writes it. A symbol (:name) counts as a text.
// For dates, times and numbers that Ruby cannot read ok is false: GitLab refuses a file that contains one.
func readScalar(text string) (tag, value string, ok bool) {
	switch {
	case text == "":
		return tagNull, "", true
	case likeText(text), strings.Contains(text, "\n"):
		tag, value = readWord(text)
		return tag, value, true
	case dateTime.MatchString(text), dateOnly.MatchString(text):
		return "", "", false
	case infinite.MatchString(text):
		sign := 1
		if text[0] == '-' {
			sign = -1
		}
		return tagFloat, rubyFloat(math.Inf(sign)), true
	case notANum.MatchString(text):
		return tagFloat, rubyFloat(math.NaN()), true
	case text[0] == ':' && len(text) > 1:
		return tagText, symbol(text[1:]), true
	case base60.MatchString(text):
		tag, value = readBase60(text)
		return tag, value, true
	case decimal.MatchString(text) && strings.TrimLeft(text, "-+") != ".":
		plain := strings.TrimSuffix(separators.Replace(text), ".")
		plain = bareExponents.Replace(plain)
		if strings.TrimLeft(plain, "-+")[0] > '9' { // only an exponent
			return "", "", false
		}
		f, _ := strconv.ParseFloat(plain, 64) // the only error is that it is out of range, and then it is infinite
		return tagFloat, rubyFloat(f), true
	case integer.MatchString(text):
		n, _ := new(big.Int).SetString(separators.Replace(text), 0) // the pattern is strict
		return tagInt, n.String(), true
	}
	return tagText, text, true
}

// likeText reports whether a scalar is a text, or a word such as yes, by its first two characters.
func likeText(text string) bool {
	first, size := utf8.DecodeRuneInString(text)
	if isTextual(first) {
		return true
	}
	second, _ := utf8.DecodeRuneInString(text[size:])
	return !strings.ContainsRune("0123456789.:-", first) && isTextual(second)
}

func isTextual(r rune) bool {
	return unicode.In(r, unicode.L, unicode.M, unicode.Nl) || strings.ContainsRune("_ \t\r\n!@#$%^&*(){}<>|/\\~;=", r)
}

// readWord reads a text, or a word that stands for null, true or false.
func readWord(text string) (tag, value string) {
	switch {
	case utf8.RuneCountInString(text) > len("false"), notAWord.MatchString(text):
	case text == "~", nullWord.MatchString(text):
		return tagNull, ""
	case yesWord.MatchString(text):
		return tagBool, "true"
	case noWord.MatchString(text):
		return tagBool, "false"
	}
	return tagText, text
}

// symbol returns the text of a symbol without its colon: its name, or the text in quotes at its beginning.
func symbol(name string) string {
	if q := name[:1]; q == `"` || q == "'" {
		if end := strings.LastIndex(name[1:], q); end >= 0 {
			return strings.TrimPrefix(name[1:1+end], ":")
		}
	}
	return name
}

// readBase60 reads hours, minutes and seconds, such as 12:30:45, as seconds. 12:30 is read as hours and minutes.
func readBase60(text string) (tag, value string) {
	float, whole := 0.0, new(big.Int)
	for i, part := range strings.Split(text, ":") {
		unit := []int64{3600, 60, 1}[i]
		read := strings.ReplaceAll(digits.FindString(part), "_", "")
		f, _ := strconv.ParseFloat(read, 64) // an error is as in readScalar
		float += f * float64(unit)
		if n, ok := new(big.Int).SetString(read, 10); ok {
			whole.Add(whole, n.Mul(n, big.NewInt(unit)))
		}
	}
	if strings.Contains(text, ".") {
		return tagFloat, rubyFloat(float)
	}
	return tagInt, whole.String()
}

// rubyFloat writes a number as Ruby does.
func rubyFloat(f float64) string {
	switch {
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	case math.IsNaN(f):
		return "NaN"
	}
	mantissa, exponent, _ := strings.Cut(strconv.FormatFloat(f, 'e', -1, 64), "e")
	places := len(strings.Trim(strings.Replace(mantissa, ".", "", 1), "-"))
	if e, _ := strconv.Atoi(exponent); e < -4 || e > 14 && e >= places-1 {
		if !strings.Contains(mantissa, ".") {
			mantissa += ".0"
		}
		return mantissa + "e" + exponent
	}
	text := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}
