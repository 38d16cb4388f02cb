package provenance

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"

	"github.com/stepmux/stepmux/internal/filesum"
)

// maxSubjects bounds the files of a provenance.
const maxSubjects = 10_000

// CheckPattern returns an error if pattern does not have the form of [path.Match].
func CheckPattern(pattern string) error {
	if _, err := path.Match(pattern, ""); err != nil {
		return fmt.Errorf("subject %.100q: %w", pattern, err)
	}
	return nil
}

// Subjects returns the files below dir that match patterns, in the form of [path.Match]. A pattern must not lead out
// of dir, and must match a regular file.
func Subjects(dir string, patterns []string) ([]Subject, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("find subjects: %w", err)
	}
	defer root.Close()
	var names []string
	for _, pattern := range patterns {
		found, err := fs.Glob(root.FS(), pattern)
		if err != nil {
			return nil, fmt.Errorf("subject %.100q: %w", pattern, err)
		}
		found = slices.DeleteFunc(found, func(name string) bool {
			info, err := root.Stat(name)
			return err != nil || !info.Mode().IsRegular()
		})
		if len(found) == 0 {
			return nil, fmt.Errorf("subject %.100q: no file in %s matches it; write a path relative to that, such as "+
				"dist/*.tar.gz", pattern, dir)
		}
		names = append(names, found...)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > maxSubjects {
		return nil, fmt.Errorf("the subjects match %d files, at most %d are allowed", len(names), maxSubjects)
	}
	subjects := make([]Subject, len(names))
	for i, name := range names {
		digest, err := filesum.SHA256(root.OpenFile, name)
		if err != nil {
			return nil, fmt.Errorf("read subject: %w", err)
		}
		subjects[i] = Subject{name, digest}
	}
	return subjects, nil
}
