package provenance

import (
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"
)

// maxSubjects is the most files a provenance is about.
const maxSubjects = 10_000

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
			return nil, fmt.Errorf(
				"subject %.100q: no file in %s matches it; write a path relative to that, such as dist/*.tar.gz",
				pattern,
				dir,
			)
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
		digest, err := fileDigest(root, name)
		if err != nil {
			return nil, fmt.Errorf("read subject: %w", err)
		}
		subjects[i] = Subject{name, digest}
	}
	return subjects, nil
}

func fileDigest(root *os.Root, name string) (string, error) {
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO must not hold us
	if err != nil {
		return "", err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", name)
	}
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}
