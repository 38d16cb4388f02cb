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
)

// The modes of what a tree has, as git writes them.
const (
	modeFile       = "100644"
	modeExecutable = "100755"
	modeSymlink    = "120000"
	modeDir        = "040000"
)

// node is a file, a symbolic link or an empty directory of a tree.
type node struct {
	Path   string `json:"path"`
	Mode   string `json:"mode"`
	SHA256 string `json:"sha256"` // of what is in the file, or of the link's target
	Size   int64  `json:"size"`
}

// treeDigest returns the digest of nodes, which it sorts.
func treeDigest(nodes []node) string {
	slices.SortFunc(nodes, func(a, b node) int { return cmp.Compare(a.Path, b.Path) })
	h := sha256.New()
	for _, n := range nodes {
		fmt.Fprintf(h, "%s %s\x00%s\n", n.Mode, n.Path, n.SHA256)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// treeWriter writes the files of a component, and refuses what does not belong into one. An error ends it: what was
// written is removed by the caller.
type treeWriter struct {
	root   *os.Root
	limits limits
	dirs   map[string]bool   // made so far, and whether there is something in it
	nodes  map[string]node   // files and links by path
	folded map[string]string // paths, by what they are without regard to case
	total  int64
}

// newTreeWriter writes to dir, which it makes.
func newTreeWriter(dir string, l limits) (*treeWriter, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &treeWriter{root: root, limits: l, dirs: map[string]bool{}, nodes: map[string]node{}, folded: map[string]string{}}, nil
}

func (w *treeWriter) close() { w.root.Close() }

// checkPath refuses a path that is no plain path below the tree.
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

// add takes note of something called name, and makes the directories it is in.
func (w *treeWriter) add(name string) error {
	if err := checkPath(name); err != nil {
		return err
	}
	if len(w.nodes)+len(w.dirs) >= w.limits.entries {
		return fmt.Errorf("there are more than %d entries", w.limits.entries)
	}
	if _, twice := w.nodes[name]; twice {
		return errors.New("it is there twice (duplicate)")
	}
	if err := w.fold(name); err != nil {
		return err
	}
	return w.makeDirs(path.Dir(name))
}

// fold refuses a name that differs from another one only by case.
func (w *treeWriter) fold(name string) error {
	key := strings.ToLower(strings.ToUpper(name))
	if other, found := w.folded[key]; found && other != name {
		return fmt.Errorf("its name differs from %q only by case", printable(other, 100))
	}
	w.folded[key] = name
	return nil
}

// makeDirs makes the directory dir and those it is in, to which something is added.
func (w *treeWriter) makeDirs(dir string) error {
	if dir == "." {
		return nil
	}
	if filled, made := w.dirs[dir]; made {
		if !filled {
			w.dirs[dir] = true
		}
		return nil
	}
	if _, file := w.nodes[dir]; file {
		return fmt.Errorf("%q is a file, and a directory too (duplicate)", printable(dir, 100))
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
	if err := w.add(name); err != nil {
		return w.wrong(name, err)
	}
	if err := w.makeDirs(name); err != nil {
		return w.wrong(name, err)
	}
	w.dirs[name] = false
	return nil
}

// file adds a file with what r has.
func (w *treeWriter) file(name string, executable bool, r io.Reader) error {
	if _, dir := w.dirs[name]; dir {
		return w.wrong(name, errors.New("it is there twice (duplicate)"))
	}
	if err := w.add(name); err != nil {
		return w.wrong(name, err)
	}
	n := node{Path: name, Mode: modeFile}
	perm := fs.FileMode(0o444)
	if executable {
		n.Mode, perm = modeExecutable, 0o555
	}
	file, err := w.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return w.wrong(name, oserr.Bare(err))
	}
	defer file.Close()
	h := sha256.New()
	limit := min(w.limits.file, w.limits.total-w.total)
	n.Size, err = io.Copy(io.MultiWriter(file, h), io.LimitReader(r, limit+1))
	switch {
	case err != nil:
		return w.wrong(name, oserr.Bare(err))
	case n.Size > limit:
		return w.wrong(name, tooLarge(limit))
	}
	if err := file.Chmod(perm); err != nil {
		return w.wrong(name, oserr.Bare(err))
	}
	if err := file.Close(); err != nil {
		return w.wrong(name, oserr.Bare(err))
	}
	w.total += n.Size
	n.SHA256 = fmt.Sprintf("%x", h.Sum(nil))
	w.nodes[name] = n
	return nil
}

func tooLarge(limit int64) error {
	return fmt.Errorf("its size is beyond the limit, which leaves %d bytes", limit)
}

// symlink adds a symbolic link.
func (w *treeWriter) symlink(name, target string) error {
	if _, dir := w.dirs[name]; dir {
		return w.wrong(name, errors.New("it is there twice (duplicate)"))
	}
	if err := w.add(name); err != nil {
		return w.wrong(name, err)
	}
	if target == "" || len(target) > maxTarget || strings.IndexByte(target, 0) >= 0 {
		return w.wrong(name, errors.New("the symlink leads nowhere"))
	}
	if path.IsAbs(target) || outside(path.Join(path.Dir(name), target)) {
		return w.wrong(name, errLeaves)
	}
	if err := w.root.Symlink(target, name); err != nil {
		return w.wrong(name, oserr.Bare(err))
	}
	w.nodes[name] = node{Path: name, Mode: modeSymlink, SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte(target))), Size: int64(len(target))}
	return nil
}

var errLeaves = errors.New("the symlink leads outside of what is fetched")

// outside reports whether a clean relative path begins with "..".
func outside(p string) bool { return p == ".." || strings.HasPrefix(p, "../") }

func (w *treeWriter) wrong(name string, err error) error {
	return fmt.Errorf("write %q: %w", printable(name, 200), err)
}

// finish makes all read-only and returns what there is.
func (w *treeWriter) finish() ([]node, error) {
	nodes := make([]node, 0, len(w.nodes))
	for name, n := range w.nodes {
		if n.Mode == modeSymlink {
			// By way of other links it may lead elsewhere than it says.
			_, err := w.root.Stat(name)
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ELOOP) && !errors.Is(err, unix.ENOTDIR) {
				return nil, w.wrong(name, errLeaves)
			}
		}
		nodes = append(nodes, n)
	}
	for dir, filled := range w.dirs {
		if err := w.root.Chmod(dir, 0o555); err != nil {
			return nil, w.wrong(dir, oserr.Bare(err))
		}
		if !filled {
			nodes = append(nodes, node{Path: dir, Mode: modeDir, SHA256: emptyDigest})
		}
	}
	if err := w.root.Chmod(".", 0o555); err != nil {
		return nil, w.wrong(".", oserr.Bare(err))
	}
	return nodes, nil
}

// emptyDigest is the digest of nothing.
var emptyDigest = fmt.Sprintf("%x", sha256.Sum256(nil))
