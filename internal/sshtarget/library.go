package sshtarget

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/kevinburke/ssh_config"

	"github.com/stepmux/stepmux/internal/boundedfile"
)

// maxIncludes bounds how deep included files are searched.
const maxIncludes = 5

var (
	// matchLine finds Match, which the library does not evaluate.
	matchLine = regexp.MustCompile(`(?im)^[ \t]*match[ \t=]`)
	// includeLine finds the lines that include files.
	includeLine = regexp.MustCompile(`(?im)^([ \t]*include)[ \t=]+(.*)$`)
)

// parse reads the sources with the library.
func (c *config) parse() error {
	for _, s := range c.sources {
		parsed, err := decode(absoluteIncludes(s.name, s.text))
		if err != nil {
			return fmt.Errorf("read ssh_config %s: %w", s.name, err)
		}
		c.parsed = append(c.parsed, parsed)
	}
	return nil
}

// decode parses a file. It turns a panic of the library, which cannot parse some files, into an error.
func decode(text []byte) (c *ssh_config.Config, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("it cannot be parsed: %v", r)
		}
	}()
	return ssh_config.DecodeBytes(text)
}

// inParsed looks up values for a machine with the library.
func (c *config) inParsed(where place) lookup {
	return func(keyword string) []string {
		var all []string
		for _, f := range c.parsed {
			values, err := f.GetAll(where.host, keyword)
			if err == nil { // a parsed file has no nodes that return errors
				all = append(all, values...)
			}
		}
		return all
	}
}

// absoluteIncludes makes the names of included files absolute, as ssh does: a user's are in ~/.ssh, the system's in
// /etc/ssh. (The library knows only one home directory, and no system directory.)
func absoluteIncludes(file string, text []byte) []byte {
	home, err := os.UserHomeDir()
	if err != nil {
		return text
	}
	dir := filepath.Join(home, ".ssh")
	if strings.HasPrefix(filepath.Clean(file), "/etc/ssh/") {
		dir = "/etc/ssh"
	}
	return includeLine.ReplaceAllFunc(text, func(line []byte) []byte {
		parts := includeLine.FindSubmatch(line)
		names := splitQuoted(string(parts[2]))
		for i, name := range names {
			name = unquote(name)
			switch rest, ofHome := strings.CutPrefix(name, "~/"); {
			case ofHome:
				name = filepath.Join(home, rest)
			case !filepath.IsAbs(name):
				name = filepath.Join(dir, name)
			}
			names[i] = name
		}
		return []byte(string(parts[1]) + " " + strings.Join(names, " "))
	})
}

// hasMatch reports whether a source, or a file that it includes, has Match.
func (c *config) hasMatch() bool {
	return slices.ContainsFunc(c.sources, func(s source) bool {
		return hasMatch(absoluteIncludes(s.name, s.text), maxIncludes)
	})
}

// hasMatch returns false for a file that cannot be read: the parser reports it.
func hasMatch(text []byte, depth int) bool {
	if matchLine.Match(text) {
		return true
	}
	if depth == 0 {
		return false
	}
	for _, parts := range includeLine.FindAllSubmatch(text, -1) {
		for _, pattern := range splitQuoted(string(parts[2])) {
			files, _ := filepath.Glob(pattern) // the parser reports a bad pattern, too
			for _, file := range files {
				included, err := boundedfile.Read(file, maxConfig)
				if err == nil && hasMatch(absoluteIncludes(file, included), depth-1) {
					return true
				}
			}
		}
	}
	return false
}
