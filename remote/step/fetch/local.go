package fetch

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
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
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", fmt.Errorf("take the digest of %s: %w", dir, err)
	}
	defer root.Close()
	var nodes []node
	count, empty := 0, map[string]bool{}
	err = fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case name == ".":
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
		delete(empty, path.Dir(name))
		if d.IsDir() {
			empty[name] = true
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		n, err := nodeOf(root, name, info, sum)
		if err != nil {
			return err
		}
		if size -= n.Size; size < 0 {
			return ErrTooLarge
		}
		nodes = append(nodes, n)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("take the digest of %s: %w", dir, err)
	}
	for name := range empty {
		nodes = append(nodes, emptyDir(name))
	}
	return treeDigest(nodes), nil
}

func emptyDir(name string) node { return node{Path: name, Mode: modeDir, SHA256: emptyDigest} }

// nodeOf returns the node of a file or a symbolic link in root.
func nodeOf(root *os.Root, name string, info fs.FileInfo, sum func(string, fs.FileInfo) (string, error)) (node, error) {
	n := node{Path: name, Size: info.Size(), Mode: modeFile}
	at := filepath.Join(root.Name(), name)
	switch {
	case info.Mode().Type() == fs.ModeSymlink:
		target, err := root.Readlink(name)
		n.Mode, n.SHA256 = modeSymlink, fmt.Sprintf("%x", sha256.Sum256([]byte(target)))
		return n, err
	case !info.Mode().IsRegular():
		return n, fmt.Errorf("%s is neither a file nor a directory nor a symbolic link", at)
	case info.Mode().Perm()&0o100 != 0:
		n.Mode = modeExecutable
	}
	var err error
	n.SHA256, err = sum(at, info)
	return n, err
}
