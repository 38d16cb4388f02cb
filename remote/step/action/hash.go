package action

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/internal/lazyregexp"
)

// maxHashed bounds the files that hashFiles reads.
const maxHashed = 100_000

// gitDir is the base of patterns that find the repository of the work directory. Others do not find it.
const gitDir = ".git/"

// excluded is the base of a pattern that excludes files.
const excluded = "/"

// parsePatterns reads the patterns of hashFiles, one a line. They are those of files in dir. The base of each is the
// part before its first directory or file with a wildcard, with a slash at the end, or empty; or excluded.
func parsePatterns(dir, given string) (globs, bases []string, err error) {
	for given != "" {
		var line string
		line, given, _ = strings.Cut(given, "\n")
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		base, negative := line, false
		for base != "" && base[0] == '!' {
			base, negative = strings.TrimSpace(base[1:]), !negative
		}
		if base == "" {
			return nil, nil, errors.New("hashFiles: ! stands before no pattern")
		}
		if parts := strings.Split(base, "/"); slices.Contains(parts, "..") || slices.Contains(parts[1:], ".") {
			return nil, nil, fmt.Errorf("hashFiles: the pattern %.160q has a part . or .., which GitHub does not allow", line)
		}
		directory := strings.HasSuffix(base, "/")
		if !filepath.IsAbs(base) {
			base = filepath.Join(dir, base)
		}
		base, err = filepath.Rel(dir, base)
		glob := globOf(base)
		if err != nil || len(globs) == maxEntries || !filepath.IsLocal(base) || !doublestar.ValidatePattern(glob) {
			return nil, nil, fmt.Errorf("hashFiles: the pattern %.160q is not one of at most %d of files in the work directory",
				line, maxEntries)
		}
		if directory && glob != "." {
			glob += "/*/**"
		}
		if i := strings.IndexAny(base, `*?[\`); i >= 0 {
			base = filepath.Dir(base[:i] + "x")
		}
		if base += "/"; negative {
			base = excluded
		}
		globs, bases = append(globs, glob), append(bases, strings.TrimPrefix(base, "./"))
	}
	return globs, bases, nil
}

// globOf returns a pattern of GitHub, whose library is minimatch without braces, as doublestar reads it. Braces stand
// for themselves: with a meaning, the time for a match would grow exponentially with their number. A bracket that is
// not closed in its part of the path stands for itself, too, as do those of a range that goes down.
func globOf(pattern string) string {
	var glob strings.Builder
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '\\' && i+1 < len(pattern) && pattern[i+1] != '/':
			i++
			glob.WriteString(pattern[i-1 : i+1])
		case c == '[':
			set := bracketSet().FindString(pattern[i:])
			if _, err := syntax.Parse(set, syntax.Perl); set == "" || err != nil || !doublestar.ValidatePattern(set) {
				glob.WriteString(`\[`)
				continue
			}
			glob.WriteString(set)
			i += len(set) - 1
		case strings.IndexByte(`{}]\`, c) >= 0:
			glob.WriteString(`\` + pattern[i:i+1])
		default:
			glob.WriteByte(c)
		}
	}
	return glob.String()
}

// bracketSet is a set of characters in brackets, in one part of a path.
var bracketSet = lazyregexp.New(`^\[[!^]?(?:\\[^/]|[^]\\/])+\]`)

// hashFiles returns the SHA-256 of the digests of the files below dir that the patterns select, or "" without any. A
// pattern after ! excludes files. It ends early when stopped returns true.
func hashFiles(open boundedfile.Opener, dir string, given []string, stopped func() bool) (string, error) {
	globs, bases, err := parsePatterns(dir, strings.Join(given, "\n"))
	if err != nil {
		return "", err
	}
	selected := func(path string) (is bool) { // the last pattern that matches decides
		for i, glob := range globs {
			if is == (bases[i] == excluded) && (glob == "." || doublestar.MatchUnvalidated(glob, path) ||
				doublestar.MatchUnvalidated(glob+"/**", path)) {
				is = !is
			}
		}
		return is
	}
	at, err := open(dir, os.O_RDONLY, 0)
	if err != nil {
		return "", fmt.Errorf("hashFiles: %w", err)
	}
	defer at.Close()
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", at.Fd())) // not by its path, because a step can change that
	if err != nil {
		return "", fmt.Errorf("hashFiles: %w", err)
	}
	defer root.Close()
	sum, count := sha256.New(), 0
	for i, base := range bases { // as on GitHub, in the order of the patterns
		covered := base == excluded
		for j, other := range bases {
			covered = covered || (j < i || other != base) && strings.HasPrefix(base, other) &&
				(other != "" || !strings.HasPrefix(base, gitDir))
		}
		if covered {
			continue
		}
		base = filepath.Clean(base)
		info, err := root.Lstat(base)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() && !isFile(root, base, info.Mode()) {
			continue
		}
		if err == nil {
			err = fs.WalkDir(root.FS(), base, func(path string, d fs.DirEntry, err error) error {
				if err == nil && stopped() {
					err = errStopped
				}
				ofGit := base == "." && strings.HasPrefix(path+"/", gitDir)
				if err != nil || ofGit || !isFile(root, path, d.Type()) || !selected(path) {
					return err
				}
				if count++; count > maxHashed {
					return fmt.Errorf("there are more than %d files", maxHashed)
				}
				file, err := boundedfile.Open(root.OpenFile, path)
				if err != nil {
					return err
				}
				own := sha256.New()
				for err == nil { // a sparse file can have any size
					if _, err = io.CopyN(own, file, 16<<20); err == nil && stopped() {
						err = errStopped
					}
				}
				file.Close()
				if errors.Is(err, io.EOF) {
					sum.Write(own.Sum(nil))
					err = nil
				}
				return err
			})
		}
		if err != nil {
			return "", fmt.Errorf("hashFiles: %w", err)
		}
	}
	if count == 0 {
		return "", nil
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// isFile reports whether a path with this mode is that of a regular file, or of a link to one in the work directory.
func isFile(root *os.Root, path string, mode fs.FileMode) bool {
	if mode&fs.ModeSymlink == 0 {
		return mode.IsRegular()
	}
	info, err := root.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

var errStopped = errors.New("the job was stopped")
