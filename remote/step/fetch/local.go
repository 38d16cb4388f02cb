package fetch

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// ErrTooLarge says that a directory exceeds the limits of DirTree.
var ErrTooLarge = errors.New("the directory is too large")

// DirTree returns the digest of the files in the directory dir, in hexadecimal, by the rules of [Source].Tree. It
// leaves out entries called .git. sum returns the SHA-256 of the regular file path, in hexadecimal. The error is
// ErrTooLarge for more than entries files, links and directories, or more than size bytes. Other kinds of files are an
// error.
func DirTree(
	dir string, entries int, size int64, sum func(path string, info fs.FileInfo) (string, error),
) (string, error) {
	var nodes []node
	count, empty := 0, map[string]bool{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path == dir:
			return nil
		case d.Name() == ".git":
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if count++; count > entries {
			return ErrTooLarge
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		delete(empty, filepath.Dir(name))
		if d.IsDir() {
			empty[name] = true
			return nil
		}
		n, err := nodeOf(path, d, sum)
		if err != nil {
			return err
		}
		if size -= n.Size; size < 0 {
			return ErrTooLarge
		}
		n.Path = filepath.ToSlash(name)
		nodes = append(nodes, n)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("take the digest of %s: %w", dir, err)
	}
	for name := range empty {
		nodes = append(nodes, node{Path: filepath.ToSlash(name), Mode: modeDir, SHA256: emptyDigest})
	}
	return treeDigest(nodes), nil
}

// nodeOf returns the node of a file or a symbolic link.
func nodeOf(path string, d fs.DirEntry, sum func(string, fs.FileInfo) (string, error)) (node, error) {
	info, err := d.Info()
	if err != nil {
		return node{}, err
	}
	n := node{Size: info.Size(), Mode: modeFile}
	switch {
	case info.Mode().Type() == fs.ModeSymlink:
		target, err := os.Readlink(path)
		n.Mode, n.SHA256 = modeSymlink, fmt.Sprintf("%x", sha256.Sum256([]byte(target)))
		return n, err
	case !info.Mode().IsRegular():
		return n, fmt.Errorf("%s is neither a file nor a directory nor a symbolic link", path)
	case info.Mode().Perm()&0o100 != 0:
		n.Mode = modeExecutable
	}
	n.SHA256, err = sum(path, info)
	return n, err
}
