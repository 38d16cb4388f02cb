// Package percent expands %-tokens in configured text, as OpenSSH does (ssh_config(5), TOKENS).
package percent

import (
	"fmt"
	"strings"
)

// Expand replaces each token of s, a % and a letter, by its value; %% is a %. A token without a value is an error.
func Expand(s string, values map[byte]string) (string, error) {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(s, "%")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		if rest == "" {
			return "", fmt.Errorf("expand %q: a single %% at the end; write %%%% for a %%", s)
		}
		value, known := values[rest[0]]
		switch {
		case rest[0] == '%':
			value = "%"
		case !known:
			return "", fmt.Errorf("expand %q: there is no %%%c here; write %%%% for a %%", s, rest[0])
		}
		out.WriteString(value)
		s = rest[1:]
	}
}

// ExpandAll expands each word by itself: values with blanks do not split it.
func ExpandAll(words []string, values map[byte]string) ([]string, error) {
	all := make([]string, len(words))
	for i, w := range words {
		var err error
		if all[i], err = Expand(w, values); err != nil {
			return nil, err
		}
	}
	return all, nil
}
