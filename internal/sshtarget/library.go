package sshtarget

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
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
			err = fmt.Errorf("the file cannot be parsed: %v", r)
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

// onlySSH returns what a source, or a file that it includes, has and the library does not evaluate as ssh does, or "".
func (c *config) onlySSH() string {
	for _, s := range c.sources {
		if found := onlySSH(absoluteIncludes(s.name, s.text), maxIncludes); found != "" {
			return found
		}
	}
	return ""
}

// onlySSH returns "" for a file that cannot be read: the parser reports it.
func onlySSH(text []byte, depth int) string {
	if matchLine.Match(text) {
		return "Match"
	}
	for line := range bytes.Lines(text) {
		if found := misread(strings.TrimSpace(string(line))); found != "" {
			return found
		}
	}
	if depth == 0 {
		return ""
	}
	for _, parts := range includeLine.FindAllSubmatch(text, -1) {
		for _, pattern := range splitQuoted(string(parts[2])) {
			files, _ := filepath.Glob(pattern) // the parser reports a bad pattern, too
			for _, file := range files {
				included, err := boundedfile.Read(file, maxConfig)
				if err != nil {
					continue
				}
				if found := onlySSH(absoluteIncludes(file, included), depth-1); found != "" {
					return found
				}
			}
		}
	}
	return ""
}

// misread returns the part of a line that the library misreads, or "". The library takes each # for the beginning of
// a comment, and the first and the last quote of a value for a pair.
func misread(line string) string {
	quoted, quotes := false, 0
	for i, c := range line {
		switch {
		case c == '"':
			quoted = !quoted
			quotes++
		case c == '#' && !quoted && (i == 0 || strings.ContainsAny(line[i-1:i], " \t")):
			return ""
		case c == '#':
			return "a # within a value"
		}
	}
	if _, value, ok := strings.Cut(line, `"`); ok && quotes > 2 && strings.HasSuffix(value, `"`) {
		return "several words in quotes"
	}
	return ""
}
