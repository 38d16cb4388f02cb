package yamltree

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Format returns v as YAML on one line: as JSON, with the characters escaped that YAML must escape and JSON not.
func Format(v any) (string, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for _, c := range string(data) {
		if c >= 0x7f && c < 0xa0 || c == 0xfeff || c == 0xfffe || c == 0xffff {
			fmt.Fprintf(&text, `\u%04x`, c)
			continue
		}
		text.WriteRune(c)
	}
	return text.String(), nil
}
