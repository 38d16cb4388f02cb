package component

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"

	"golang.org/x/sys/unix"
)

// The modes of entries, as git writes them.
const (
	ModeFile       = "100644"
	ModeExecutable = "100755"
	ModeSymlink    = "120000"
	ModeDir        = "040000"
)

// Node is an entry of a tree: a file, a symbolic link or an empty directory.
type Node struct {
	Path   string `json:"path"`
	Mode   string `json:"mode"`
	SHA256 string `json:"sha256"` // of the file's content, or of the link's target
	Size   int64  `json:"size"`
}

// Digest sorts nodes and returns their digest.
func Digest(nodes []Node) string {
	// Not slices.SortFunc: that is compiled again for each type, which costs the VM's end 20 KB.
	sort.Slice(nodes, func(i, j int) bool { return nodes[i].Path < nodes[j].Path })
	h := sha256.New()
	for _, n := range nodes {
		fmt.Fprintf(h, "%s %s\x00%s\n", n.Mode, n.Path, n.SHA256)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// ErrTooLarge says that a directory exceeds the limits of DirTree.
var ErrTooLarge = errors.New("the directory is too large")

// DirTree returns the digest of the files in the directory dir, in hexadecimal, by the rules of [Source].Tree. It
// leaves out entries called .git. sum returns the SHA-256 of the regular file path, in hexadecimal. The error is
// ErrTooLarge if there are more than entries files, links and directories, or more than size bytes. Other kinds of
// files are an error.
func DirTree(
	dir string, entries int, size int64, sum func(path string, info fs.FileInfo) (string, error),
) (string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", fmt.Errorf("take the digest of %s: %w", dir, err)
	}
	defer root.Close()
	var nodes []Node
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
		n, err := NodeOf(root, name, info, sum)
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
		nodes = append(nodes, EmptyDir(name))
	}
	return Digest(nodes), nil
}

// EmptyDir returns the node of an empty directory.
func EmptyDir(name string) Node { return Node{Path: name, Mode: ModeDir, SHA256: emptyDigest} }

// NodeOf returns the node of a file or a symbolic link in root.
func NodeOf(root *os.Root, name string, info fs.FileInfo, sum func(string, fs.FileInfo) (string, error)) (Node, error) {
	n := Node{Path: name, Size: info.Size(), Mode: ModeFile}
	at := filepath.Join(root.Name(), name)
	switch {
	case info.Mode().Type() == fs.ModeSymlink:
		target, err := readlink(root, name)
		n.Mode, n.SHA256 = ModeSymlink, fmt.Sprintf("%x", sha256.Sum256([]byte(target)))
		return n, err
	case !info.Mode().IsRegular():
		return n, fmt.Errorf("%s is neither a file nor a directory nor a symbolic link", at)
	case info.Mode().Perm()&0o100 != 0:
		n.Mode = ModeExecutable
	}
	var err error
	n.SHA256, err = sum(at, info)
	return n, err
}

// readlink is root.Readlink, which would make the VM's end 5 KB larger.
func readlink(root *os.Root, name string) (string, error) {
	dir, err := root.Open(path.Dir(name))
	if err != nil {
		return "", err
	}
	defer dir.Close()
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(dir.Fd()), path.Base(name), target)
	return string(target[:max(n, 0)]), err
}

// emptyDigest is the digest of no bytes.
var emptyDigest = fmt.Sprintf("%x", sha256.Sum256(nil))
