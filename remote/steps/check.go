package steps

import (
	"fmt"
	"strings"
)

// maxName is the longest name of a step, in bytes.
const maxName = 256

// isName reports whether s is a name: [A-Za-z_][A-Za-z0-9_]*. Steps and variables have names.
func isName(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

const (
	exprOpen    = "${{"
	exprEscaped = `\${{`
)

// literal returns the text a value stands for: \${{ is the escape of ${{, and no other byte changes.
// There is nothing yet that could evaluate an expression, so one that is not escaped is an error: its
// text would reach a shell.
func literal(w word) (string, error) {
	if i := strings.IndexByte(w.text, 0); i >= 0 {
		return "", w.at.errorf("the text holds a NUL byte, which no program can be given")
	}
	var out strings.Builder
	rest := w.text
	for {
		i := strings.Index(rest, exprOpen)
		if i < 0 {
			break
		}
		if i == 0 || rest[i-1] != '\\' {
			return "", w.at.errorIn(w.text, len(w.text)-len(rest)+i, exprOpen,
				"the expression ${{ is not supported by this version; for the text itself write %s", exprEscaped)
		}
		out.WriteString(rest[:i-1])
		out.WriteString(exprOpen)
		rest = rest[i+len(exprOpen):]
	}
	if out.Len() == 0 {
		return rest, nil
	}
	out.WriteString(rest)
	return out.String(), nil
}

// checkFixed refuses an expression where none can ever stand, such as in a name.
func checkFixed(w word) error {
	_, err := literal(w)
	return err
}

func compileEnv(pairs []pair) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	env := make(map[string]string, len(pairs))
	total := 0
	for _, p := range pairs {
		if err := checkFixed(p.key); err != nil {
			return nil, err
		}
		if !isName(p.key.text) {
			return nil, p.key.at.errorf("%s", badVariable(p.key.text))
		}
		value, err := literal(p.value)
		if err != nil {
			return nil, err
		}
		size := len(p.key.text) + 1 + len(value)
		if size > MaxArg {
			return nil, p.value.at.errorf("the variable has %d bytes, at most %d can be passed; put it into a file", size, MaxArg)
		}
		if total += size; total > MaxEnv {
			return nil, p.value.at.errorf("the variables have more than %d bytes in all; put some into files", MaxEnv)
		}
		env[p.key.text] = value
	}
	return env, nil
}

func badVariable(name string) string {
	return fmt.Sprintf("the variable name%s is not valid; use letters, digits and _, not a digit first", quote(name))
}

// CheckEnv checks variables that were not read as part of a job, under the name field. The rules are
// those of env in a job, but the values are taken as they are: they hold no expressions. The error is
// an [*Error].
func CheckEnv(field string, env map[string]string) error {
	total := 0
	for name, value := range env {
		at := place{path: fmt.Sprintf("%s[%s]", field, strings.TrimSpace(quote(name)))}
		size := len(name) + 1 + len(value)
		switch {
		case !isName(name):
			return place{path: field}.errorf("%s", badVariable(name))
		case strings.IndexByte(value, 0) >= 0:
			return at.errorf("the value holds a NUL byte, which no program can be given")
		case size > MaxArg:
			return at.errorf("the variable has %d bytes, at most %d can be passed; put it into a file", size, MaxArg)
		}
		if total += size; total > MaxEnv {
			return place{path: field}.errorf("the variables have more than %d bytes in all; put some into files", MaxEnv)
		}
	}
	return nil
}
