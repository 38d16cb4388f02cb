package standalone

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/stepmux/stepmux/remote/step/lang"
)

// maxVariables bounds the variables of all files of a [ReadEnvFiles].
const maxVariables = 10_000

// ReadEnvFiles returns the variables in files, each as NAME=VALUE. If a name comes several times, the last value
// counts. A file has the form of docker's --env-file: NAME alone takes its value from lookup, the environment, and is
// ignored if it is not there; # at the beginning of a line begins a comment; quotes are part of a value.
func ReadEnvFiles(files []string, lookup func(string) (string, bool)) (vars []string, err error) {
	for _, file := range files {
		text, err := ReadFile(file, os.Stdin)
		if err == nil && len(text) > lang.MaxText {
			err = fmt.Errorf("%s: it has more than %d MiB", file, lang.MaxText>>20)
		}
		if err != nil {
			return nil, err
		}
		if vars, err = addVariables(vars, file, text, lookup); err != nil {
			return nil, err
		}
	}
	return vars, nil
}

// addVariables adds the variables in the text of a file.
func addVariables(vars []string, file string, text []byte, lookup func(string) (string, bool)) ([]string, error) {
	n := 0
	for line := range bytes.Lines(bytes.TrimPrefix(text, []byte("\ufeff"))) {
		n++
		line = bytes.TrimLeft(bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r")), " \t")
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(string(line), "=")
		switch {
		case !utf8.Valid(line) || bytes.ContainsRune(line, 0):
			return nil, fmt.Errorf("%s:%d: the line is not valid UTF-8, or has a zero byte", file, n)
		case !lang.IsName(name):
			return nil, fmt.Errorf("%s:%d: the variable name%s is not valid; write NAME=VALUE, or NAME for its value in the "+
				"environment", file, n, lang.Quote(name))
		case !ok:
			if value, ok = lookup(name); !ok {
				continue
			}
		}
		vars = slices.DeleteFunc(vars, func(other string) bool { return strings.HasPrefix(other, name+"=") })
		if vars = append(vars, name+"="+value); len(vars) > maxVariables {
			return nil, fmt.Errorf("%s:%d: there are more than %d variables", file, n, maxVariables)
		}
	}
	return vars, nil
}
