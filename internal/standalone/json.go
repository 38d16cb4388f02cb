package standalone

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"unicode/utf16"
)

// escapes matches an escape of JSON. A pair of surrogates counts as one.
var escapes = regexp.MustCompile(`\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\.`)

// fromJSON checks that text is JSON, and returns it as YAML. JSON is YAML, except for surrogate pairs, which it writes
// in YAML's form.
func fromJSON(name string, text []byte) ([]byte, error) {
	text = bytes.TrimPrefix(text, []byte("\ufeff")) // as YAML may begin, too
	var any json.RawMessage
	err := json.Unmarshal(text, &any)
	if bad := (*json.SyntaxError)(nil); errors.As(err, &bad) {
		return nil, fmt.Errorf("%s: not valid JSON, at byte %d: %w", name, bad.Offset, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: not valid JSON: %w", name, err)
	}
	return escapes.ReplaceAllFunc(text, func(escape []byte) []byte {
		if len(escape) != len(`\ud83d\ude00`) {
			return escape
		}
		return []byte(string(utf16.DecodeRune(unit(escape[2:6]), unit(escape[8:]))))
	}), nil
}

// unit returns the value of four hexadecimal digits.
func unit(digits []byte) rune {
	n, _ := strconv.ParseUint(string(digits), 16, 16) // the pattern matches only such digits
	return rune(n)
}
