package fetch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/remote/step/component"
)

// treeWriter writes the files of a component below one directory, and refuses entries that lead outside or exceed a
// limit. After an error it cannot be used any more; the caller removes the directory.
type treeWriter struct {
	root   *os.Root
	limits limits
	at     string            // the directory of the last entry
	inside *os.Root          // that directory, open: the next entry is often in the same one
	dirs   map[string]bool   // made so far, and the root; false for an empty directory
	nodes  map[string]node   // files and links by path
	links  map[string]string // the targets of links
	folded map[string]string // paths by their lower-case form
	total  int64
	names  int       // bytes of paths and targets that more entries would have to make up for
	git    *gitProof // proof of a commit's files
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
		root: root, limits: l, at: ".", inside: root, dirs: map[string]bool{".": true},
		nodes: map[string]node{}, links: map[string]string{}, folded: map[string]string{},
	}, nil
}

func (w *treeWriter) close() {
	w.inside.Close()
	w.root.Close()
}

// checkPath refuses a path that is not a plain path below the tree.
func checkPath(name string) error {
	switch {
	case name == "" || len(name) > maxPath || strings.IndexByte(name, 0) >= 0:
		return errors.New("the entry's name is empty, too long, or has a NUL byte in it")
	case !utf8.ValidString(name): // meta.json could not name it
		return errors.New("the entry's name is not UTF-8")
	case strings.Count(name, "/") >= maxDepth:
		return fmt.Errorf("the entry is more than %d deep", maxDepth)
	case strings.Contains(name, `\`):
		return errors.New(`the entry's name has a \ in it`)
	case strings.HasPrefix(name, "/"):
		return errors.New("the entry's name is an absolute path")
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "..":
			return errors.New("the entry's name leads outside (it has .. in it)")
		case part == "" || part == ".":
			return errors.New("the entry's name has an empty part in it")
		case strings.EqualFold(part, ".git"):
			return errors.New("the entry is part of a .git directory")
		}
	}
	return nil
}

// add counts a new entry, whose name is valid, makes its parent directories and opens its parent.
func (w *treeWriter) add(name string) error {
	parent := path.Dir(name)
	if err := w.makeDir(parent); err != nil {
		return err
	}
	w.dirs[parent] = true
	if len(w.nodes)+len(w.dirs) > w.limits.entries {
		return fmt.Errorf("there are more than %d entries", w.limits.entries)
	}
	if err := w.keeps(len(name) - nameSize); err != nil {
		return err
	}
	key := strings.ToLower(strings.ToUpper(name))
	if other, found := w.folded[key]; found && other != name {
		return fmt.Errorf("the entry's name differs from %q only by case", termtext.Short(other, 100))
	}
	w.folded[key] = name
	return w.enter(parent)
}

// keeps counts the bytes of a path or of a target.
func (w *treeWriter) keeps(n int) error {
	if w.names += n; w.names > nameFloor {
		return fmt.Errorf("the paths and links are longer than %d bytes on average", nameSize)
	}
	return nil
}

// enter opens the directory dir of the tree, unless it is open.
func (w *treeWriter) enter(dir string) error {
	if dir == w.at {
		return nil
	}
	from, name := w.root, dir
	if path.Dir(dir) == w.at {
		from, name = w.inside, path.Base(dir)
	}
	next, err := from.OpenRoot(name)
	if err != nil {
		return err
	}
	if w.at != "." {
		w.inside.Close()
	}
	w.at, w.inside = dir, next
	return nil
}

// makeDir makes the directory dir, unless it is there.
func (w *treeWriter) makeDir(dir string) error {
	if _, file := w.nodes[dir]; file {
		return fmt.Errorf("%q is a file, and a directory too (duplicate)", termtext.Short(dir, 100))
	}
	if _, made := w.dirs[dir]; made {
		return nil
	}
	if err := w.add(dir); err != nil {
		return err
	}
	w.dirs[dir] = false
	return w.inside.Mkdir(path.Base(dir), 0o700)
}

// dir adds a directory.
func (w *treeWriter) dir(name string) error {
	err := checkPath(name)
	if err == nil {
		err = w.makeDir(name)
	}
	if err != nil {
		return entryError(name, err)
	}
	return nil
}

// entry adds the file or symbolic link n, after write has made it and filled in its size and digest.
func (w *treeWriter) entry(n node, write func(*node) error) error {
	_, isNode := w.nodes[n.Path]
	_, isDir := w.dirs[n.Path]
	err := checkPath(n.Path)
	if err == nil && (isNode || isDir) {
		err = errDuplicate
	}
	if err == nil {
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
		file, err := w.inside.OpenFile(path.Base(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		if err := file.Chmod(perm); err != nil {
			file.Close()
			return err
		}
		h := sha256.New()
		n.Size, err = fill(file, io.TeeReader(r, h), min(w.limits.file, w.limits.total-w.total))
		w.total += n.Size
		n.SHA256 = fmt.Sprintf("%x", h.Sum(nil))
		return err
	})
}

func tooLarge(limit int64) error {
	return fmt.Errorf("the size exceeds the limit; %d bytes are left", limit)
}

// symlink adds a symbolic link. r has its target.
func (w *treeWriter) symlink(name string, r io.Reader) error {
	return w.entry(node{Path: name, Mode: modeSymlink}, func(n *node) error {
		data, err := io.ReadAll(io.LimitReader(r, maxTarget+1))
		if err != nil {
			return err
		}
		target := string(data)
		if target == "" || len(target) > maxTarget || strings.IndexByte(target, 0) >= 0 {
			return errors.New("the symlink leads nowhere")
		}
		if path.IsAbs(target) || outside(path.Join(path.Dir(name), target)) {
			return errLeaves
		}
		if err := w.keeps(len(target)); err != nil {
			return err
		}
		n.SHA256, n.Size = fmt.Sprintf("%x", sha256.Sum256(data)), int64(len(data))
		w.links[name] = target
		return w.inside.Symlink(target, path.Base(name))
	})
}

var errDuplicate = errors.New("the entry is there twice (duplicate)")

// entryError adds the name of the entry to err.
func entryError(name string, err error) error {
	return fmt.Errorf("write %q: %w", termtext.Short(name, 200), oserr.Bare(err))
}

// finish makes the tree read-only and returns its nodes.
func (w *treeWriter) finish(ctx context.Context) ([]node, error) {
	if err := checkLinks(ctx, w.links, w.limits.parts); err != nil {
		return nil, err
	}
	nodes := slices.AppendSeq(make([]node, 0, len(w.nodes)), maps.Values(w.nodes))
	for dir, filled := range w.dirs {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err := w.root.Chmod(dir, 0o555); err != nil {
			return nil, entryError(dir, err)
		}
		if !filled {
			nodes = append(nodes, component.EmptyDir(dir))
		}
	}
	return nodes, nil
}
