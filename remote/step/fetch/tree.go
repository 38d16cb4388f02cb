package fetch

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/termtext"
)

// The modes of entries, as git writes them.
const (
	modeFile       = "100644"
	modeExecutable = "100755"
	modeSymlink    = "120000"
	modeDir        = "040000"
)

// node is an entry of a tree: a file, a symbolic link or an empty directory.
type node struct {
	Path   string `json:"path"`
	Mode   string `json:"mode"`
	SHA256 string `json:"sha256"` // of the file's content, or of the link's target
	Size   int64  `json:"size"`
}

// treeDigest sorts nodes and returns their digest.
func treeDigest(nodes []node) string {
	slices.SortFunc(nodes, func(a, b node) int { return cmp.Compare(a.Path, b.Path) })
	h := sha256.New()
	for _, n := range nodes {
		fmt.Fprintf(h, "%s %s\x00%s\n", n.Mode, n.Path, n.SHA256)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// treeWriter writes the files of a component below one directory, and refuses entries that do not belong there. After
// an error it is of no more use; the caller removes the directory.
type treeWriter struct {
	root   *os.Root
	limits limits
	dirs   map[string]bool   // made so far; false if empty
	nodes  map[string]node   // files and links by path
	folded map[string]string // paths by their lower-case form
	total  int64
}

// newTreeWriter makes dir and returns a writer to it.
func newTreeWriter(dir string, l limits) (*treeWriter, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &treeWriter{
		root: root, limits: l, dirs: map[string]bool{}, nodes: map[string]node{},
		folded: map[string]string{},
	}, nil
}

func (w *treeWriter) close() { w.root.Close() }

// checkPath refuses a path that is not a plain path below the tree.
func checkPath(name string) error {
	switch {
	case name == "" || len(name) > maxPath || strings.IndexByte(name, 0) >= 0:
		return errors.New("its name is empty, too long, or has a NUL byte in it")
	case strings.Contains(name, `\`):
		return errors.New(`its name has a \ in it`)
	case strings.HasPrefix(name, "/"):
		return errors.New("its name is an absolute path")
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "..":
			return errors.New("its name leads outside (it has .. in it)")
		case part == "" || part == ".":
			return errors.New("its name has an empty part in it")
		case strings.EqualFold(part, ".git"):
			return errors.New("it is part of a .git directory")
		}
	}
	return nil
}

// add checks the name of a new entry, and makes its parent directories.
func (w *treeWriter) add(name string) error {
	if err := checkPath(name); err != nil {
		return err
	}
	if len(w.nodes)+len(w.dirs) >= w.limits.entries {
		return fmt.Errorf("there are more than %d entries", w.limits.entries)
	}
	if _, twice := w.nodes[name]; twice {
		return errDuplicate
	}
	if err := w.fold(name); err != nil {
		return err
	}
	return w.makeDirs(path.Dir(name))
}

// fold refuses a name that differs from another only by case.
func (w *treeWriter) fold(name string) error {
	key := strings.ToLower(strings.ToUpper(name))
	if other, found := w.folded[key]; found && other != name {
		return fmt.Errorf("its name differs from %q only by case", termtext.Short(other, 100))
	}
	w.folded[key] = name
	return nil
}

// makeDirs makes the directory dir, to which an entry is added, and its parents.
func (w *treeWriter) makeDirs(dir string) error {
	if dir == "." {
		return nil
	}
	if _, made := w.dirs[dir]; made {
		w.dirs[dir] = true
		return nil
	}
	if _, file := w.nodes[dir]; file {
		return fmt.Errorf("%q is a file, and a directory too (duplicate)", termtext.Short(dir, 100))
	}
	if err := w.fold(dir); err != nil {
		return err
	}
	if err := w.makeDirs(path.Dir(dir)); err != nil {
		return err
	}
	w.dirs[dir] = true
	if len(w.nodes)+len(w.dirs) > w.limits.entries {
		return fmt.Errorf("there are more than %d entries", w.limits.entries)
	}
	return w.root.Mkdir(dir, 0o700)
}

// dir adds a directory.
func (w *treeWriter) dir(name string) error {
	if _, made := w.dirs[name]; made {
		return nil
	}
	err := w.add(name)
	if err == nil {
		err = w.makeDirs(name)
	}
	if err != nil {
		return entryError(name, err)
	}
	w.dirs[name] = false
	return nil
}

// entry adds the file or symbolic link n, after write has made it and filled in its size and digest.
func (w *treeWriter) entry(n node, write func(*node) error) error {
	err := errDuplicate
	if _, isDir := w.dirs[n.Path]; !isDir {
		err = w.add(n.Path)
	}
	if err == nil {
		err = write(&n)
	}
	if err != nil {
		return entryError(n.Path, err)
	}
	w.nodes[n.Path] = n
	return nil
}

// file adds a file with the content of r.
func (w *treeWriter) file(name string, executable bool, r io.Reader) error {
	mode, perm := modeFile, fs.FileMode(0o444)
	if executable {
		mode, perm = modeExecutable, 0o555
	}
	return w.entry(node{Path: name, Mode: mode}, func(n *node) error {
		file, err := w.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		defer file.Close()
		h := sha256.New()
		limit := min(w.limits.file, w.limits.total-w.total)
		n.Size, err = io.Copy(io.MultiWriter(file, h), io.LimitReader(r, limit+1))
		switch {
		case err != nil:
			return err
		case n.Size > limit:
			return tooLarge(limit)
		}
		if err := file.Chmod(perm); err != nil {
			return err
		}
		w.total += n.Size
		n.SHA256 = fmt.Sprintf("%x", h.Sum(nil))
		return file.Close()
	})
}

func tooLarge(limit int64) error {
	return fmt.Errorf("its size exceeds the limit; %d bytes are left", limit)
}

// symlink adds a symbolic link.
func (w *treeWriter) symlink(name, target string) error {
	return w.entry(node{Path: name, Mode: modeSymlink}, func(n *node) error {
		if target == "" || len(target) > maxTarget || strings.IndexByte(target, 0) >= 0 {
			return errors.New("the symlink leads nowhere")
		}
		if path.IsAbs(target) || outside(path.Join(path.Dir(name), target)) {
			return errLeaves
		}
		n.SHA256, n.Size = fmt.Sprintf("%x", sha256.Sum256([]byte(target))), int64(len(target))
		return w.root.Symlink(target, name)
	})
}

var (
	errDuplicate = errors.New("it is there twice (duplicate)")
	errLeaves    = errors.New("the symlink leads outside of the tree that is fetched")
)

// outside reports whether a clean relative path begins with "..".
func outside(p string) bool { return p == ".." || strings.HasPrefix(p, "../") }

// entryError adds to err the name of the entry it is about.
func entryError(name string, err error) error {
	return fmt.Errorf("write %q: %w", termtext.Short(name, 200), oserr.Bare(err))
}

// finish makes the tree read-only and returns its nodes.
func (w *treeWriter) finish() ([]node, error) {
	nodes := make([]node, 0, len(w.nodes))
	for name, n := range w.nodes {
		if n.Mode == modeSymlink {
			// Other links on the way may still lead it out of the tree.
			_, err := w.root.Stat(name)
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ELOOP) && !errors.Is(err, unix.ENOTDIR) {
				return nil, entryError(name, errLeaves)
			}
		}
		nodes = append(nodes, n)
	}
	for dir, filled := range w.dirs {
		if err := w.root.Chmod(dir, 0o555); err != nil {
			return nil, entryError(dir, err)
		}
		if !filled {
			nodes = append(nodes, node{Path: dir, Mode: modeDir, SHA256: emptyDigest})
		}
	}
	if err := w.root.Chmod(".", 0o555); err != nil {
		return nil, entryError(".", err)
	}
	return nodes, nil
}

// emptyDigest is the digest of no bytes.
var emptyDigest = fmt.Sprintf("%x", sha256.Sum256(nil))
