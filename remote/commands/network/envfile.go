package network

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/stepmux/stepmux/internal/boundedfile"
)

// maxEnvFile bounds a file of --env-file, in bytes.
const maxEnvFile = 1 << 20

// readEnvFile reads lines KEY=VALUE. A value may be in quotes. In double quotes it has the escapes of JSON, and \$.
func readEnvFile(name string) (map[string]string, error) {
	data, err := boundedfile.Read(name, maxEnvFile)
	if err != nil {
		return nil, fmt.Errorf("read --env-file: %w", err)
	}
	env := map[string]string{}
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		line = strings.TrimPrefix(strings.TrimSpace(line), "export ")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, value, found := strings.Cut(line, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if found {
			value, err = unquote(value)
		}
		if !found || key == "" || err != nil {
			return nil, fmt.Errorf("read --env-file: line %d of %s is not KEY=VALUE", n, name) // the value may be secret
		}
		env[key] = value
	}
	return env, nil
}

func unquote(s string) (string, error) {
	switch {
	case len(s) >= 2 && s[0] == '\'' && s[len(s)-1] == '\'':
		return s[1 : len(s)-1], nil
	case strings.HasPrefix(s, `"`):
		return strconv.Unquote(strings.NewReplacer(`\\`, `\\`, `\$`, `$`, `\!`, `!`, "\\`", "`").Replace(s))
	}
	return s, nil
}
