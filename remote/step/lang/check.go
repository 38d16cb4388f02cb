package lang

import (
	"fmt"
	"strings"

	"github.com/stepmux/stepmux/internal/sortedkeys"
)

// maxName is the longest name of a step, in bytes.
const maxName = 256

// isName reports whether s is a name of a step, an input, an output or a variable: [A-Za-z_][A-Za-z0-9_]*.
func isName(s string) bool {
	return s != "" && !strings.Contains(digits, s[:1]) && strings.Trim(s, letters+digits) == ""
}

// checkName checks the name w. Errors call it label.
func checkName(w word, label string) error {
	if len(w.text) > maxName || !isName(w.text) {
		return w.at.errorf("the %s%s is not valid; use letters, digits and _, not a digit first, at most %d in all",
			label, Quote(w.text), maxName)
	}
	return nil
}

func badVariable(name string) string {
	return fmt.Sprintf("the variable name%s is not valid; use letters, digits and _, not a digit first", Quote(name))
}

const nulText = "holds a NUL byte, which no program can be given"

// checkNUL refuses a text with a NUL byte.
func checkNUL(w word) error {
	if strings.IndexByte(w.text, 0) >= 0 {
		return w.at.errorf("the text %s", nulText)
	}
	return nil
}

// CheckEnv checks variables that do not come from a text. Errors call them field. The rules are those of env in a job,
// but the values have no expressions. The error is an [*Error].
func CheckEnv(field string, env map[string]string) error {
	total := 0
	for _, name := range sortedkeys.Of(env) {
		value := env[name]
		if !isName(name) {
			return place{path: field}.errorf("%s (env must be alphanumeric with underscores)", badVariable(name))
		}
		at := place{path: fmt.Sprintf("%s[%s]", field, strings.TrimSpace(Quote(name)))}
		if why := CheckVariable(name, value); why != nil {
			return at.errorf("%v", why)
		}
		if total += len(name) + 1 + len(value); total > MaxEnv {
			return place{path: field}.errorf("the variables have more than %d bytes in all; put some into files", MaxEnv)
		}
	}
	return nil
}

// CheckVariable checks an environment variable. Its error does not show the value.
func CheckVariable(name, value string) error {
	switch size := len(name) + 1 + len(value); {
	case !isName(name):
		return fmt.Errorf("%s", badVariable(name))
	case strings.IndexByte(value, 0) >= 0:
		return fmt.Errorf("the value %s", nulText)
	case size > MaxArg:
		return fmt.Errorf("the variable has %d bytes, at most %d can be passed; put it into a file", size, MaxArg)
	}
	return nil
}

// IsName reports whether s can be the name of a step, an input, an output or a variable:
// [A-Za-z_][A-Za-z0-9_]*.
func IsName(s string) bool { return len(s) <= maxName && isName(s) }

// IsVariable reports whether s can be the name of a job variable: as IsName, and with "-" after the first character, as
// secrets of a called workflow may be named.
func IsVariable(s string) bool {
	return s[:min(len(s), 1)] != "-" && IsName(strings.ReplaceAll(s, "-", "_"))
}
