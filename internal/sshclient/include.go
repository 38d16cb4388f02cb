package sshclient

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// maxIncludes bounds how deep files that are included are looked into.
const maxIncludes = 5

var (
	// matchLine finds what only ssh itself evaluates right.
	matchLine = regexp.MustCompile(`(?im)^[ \t]*match[ \t=]`)
	// includeLine finds the names of files to include.
	includeLine = regexp.MustCompile(`(?im)^([ \t]*include)[ \t=]+(.*)$`)
)

// absoluteIncludes makes the names of files that a file includes absolute, as ssh takes them: a user's are in
// ~/.ssh, the system's in /etc/ssh. (The library knows of one home directory only, and of no system's.)
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

// hasMatch reports whether a file, or one that it includes, has Match. One that cannot be read has none: the
// parser will say what is wrong.
func hasMatch(text []byte, depth int) bool {
	if matchLine.Match(text) {
		return true
	}
	if depth == 0 {
		return false
	}
	for _, parts := range includeLine.FindAllSubmatch(text, -1) {
		for _, pattern := range splitQuoted(string(parts[2])) {
			files, _ := filepath.Glob(pattern) // an error is about the pattern; see above
			for _, file := range files {
				included, err := readConfig(file)
				if err == nil && hasMatch(absoluteIncludes(file, included), depth-1) {
					return true
				}
			}
		}
	}
	return false
}
