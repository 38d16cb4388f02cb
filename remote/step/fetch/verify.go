package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/stepmux/stepmux/internal/filelock"
	"github.com/stepmux/stepmux/internal/rmtree"
)

// errDamaged says that the files of a component are not what they were.
var errDamaged = errors.New("the component was changed")

// stamp is what the system says of all files of a component: their numbers, sizes and times of change, which nobody can
// set back.
type stamp [sha256.Size]byte

// verify compares a component with its digest; file is its meta.json, with the shared lock. If the system says that
// nothing has changed since this process did so last, that is enough. What a step has added, as interpreters do that
// keep what they compiled beside its source, is no part of that: it is removed if nobody else uses the component, and
// else stays. The error is filelock.ErrTaken if the component was removed meanwhile.
func (c *cache) verify(ctx context.Context, tree string, file *os.File) error {
	dir := c.path(compDir, tree, treeName)
	now, err := fingerprint(dir)
	if err != nil {
		return err
	}
	c.mu.Lock()
	same := c.verified[tree] == now
	c.mu.Unlock()
	if same {
		return nil
	}
	nodes, err := c.nodes(tree)
	if err != nil {
		return err
	}
	added, err := findAdded(dir, nodes)
	if err != nil {
		return err
	}
	if !added.none() {
		if err := tidy(ctx, file, added); err != nil {
			return err
		}
		if now, err = fingerprint(dir); err != nil {
			return err
		}
		if added, err = findAdded(dir, nodes); err != nil {
			return err
		}
	}
	if err := compare(dir, nodes); err != nil {
		return err
	}
	if added.none() { // else the next one looks again whether it can be removed
		c.mu.Lock()
		defer c.mu.Unlock()
		c.verified[tree] = now
	}
	return nil
}

// fingerprint returns the print of the files in dir. What is not there any more is left out: of a listed file compare
// tells that, and all else may go at any time.
func fingerprint(dir string) (stamp, error) {
	h := sha256.New()
	var fields [6]int64
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return unlessGone(err)
		}
		info, err := d.Info()
		if err != nil {
			return unlessGone(err)
		}
		st := info.Sys().(*syscall.Stat_t)
		fields = [6]int64{int64(st.Ino), st.Size, int64(st.Mode), st.Ctim.Sec, st.Ctim.Nsec, int64(len(path))}
		_ = binary.Write(h, binary.LittleEndian, fields[:])
		_, _ = io.WriteString(h, path)
		return nil
	})
	if err != nil {
		return stamp{}, err
	}
	return stamp(h.Sum(nil)), nil
}

// isGone reports whether err says that something is not there.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// gone makes errDamaged of an error that says that something is not there.
func gone(err error) error {
	if isGone(err) {
		return errDamaged
	}
	return err
}

// unlessGone is err unless that says that something is not there.
func unlessGone(err error) error {
	if isGone(err) {
		return nil
	}
	return err
}

// nodes returns what the component tree has by its meta.json.
func (c *cache) nodes(tree string) ([]node, error) {
	data, err := os.ReadFile(c.path(compDir, tree, metaName))
	if err != nil {
		return nil, gone(err)
	}
	var m meta
	if json.Unmarshal(data, &m) != nil || treeDigest(m.Nodes) != tree {
		return nil, errDamaged
	}
	return m.Nodes, nil
}

// compare reads the files in dir that are nodes, and compares them with these.
func compare(dir string, nodes []node) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return gone(err)
	}
	defer root.Close()
	for _, n := range nodes {
		if err := n.check(root); err != nil {
			return err
		}
	}
	return nil
}

// check compares what is in root with n.
func (n node) check(root *os.Root) error {
	info, err := root.Lstat(n.Path)
	if err != nil {
		return gone(err)
	}
	var digest [sha256.Size]byte
	mode := ""
	switch {
	case info.IsDir():
		mode, digest = modeDir, sha256.Sum256(nil)
	case info.Mode().Type() == fs.ModeSymlink:
		target, err := root.Readlink(n.Path)
		if err != nil {
			return gone(err)
		}
		mode, digest = modeSymlink, sha256.Sum256([]byte(target))
	case info.Mode() == 0o444, info.Mode() == 0o555:
		if mode = modeFile; info.Mode() == 0o555 {
			mode = modeExecutable
		}
		if info.Size() != n.Size {
			return errDamaged
		}
		file, err := root.Open(n.Path)
		if err != nil {
			return gone(err)
		}
		defer file.Close()
		h := sha256.New()
		if _, err := io.Copy(h, file); err != nil {
			return fmt.Errorf("read component: %w", err)
		}
		h.Sum(digest[:0])
	}
	if mode != n.Mode || fmt.Sprintf("%x", digest) != n.SHA256 {
		return errDamaged
	}
	return nil
}

// added is what steps have done to a component that is no change of its files.
type added struct {
	paths []string // that are not of the component
	open  []string // directories of the component that are not closed
}

func (a added) none() bool { return len(a.paths)+len(a.open) == 0 }

// findAdded returns what steps have added to the nodes in dir.
func findAdded(dir string, nodes []node) (a added, err error) {
	known := map[string]bool{".": true}
	for _, n := range nodes {
		for p := n.Path; !known[p]; p = filepath.Dir(p) {
			known[p] = true
		}
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return unlessGone(err)
		}
		rel, err := filepath.Rel(dir, path)
		switch {
		case err != nil:
			return err
		case !known[rel]:
			a.paths = append(a.paths, path)
			if d.IsDir() {
				return fs.SkipDir
			}
		case d.IsDir():
			info, err := d.Info()
			if err != nil {
				return unlessGone(err)
			}
			if info.Mode().Perm() != 0o555 {
				a.open = append(a.open, path)
			}
		}
		return nil
	})
	return a, err
}

// tidy removes what was added to the component of which file is the meta.json if nobody else uses it. It has the shared
// lock before and after, and waits for that only while it has none. The error is filelock.ErrTaken if the component was removed.
func tidy(ctx context.Context, file *os.File, a added) error {
	err := filelock.Try(file)
	if err == nil {
		err = a.remove()
	}
	if err != nil && !errors.Is(err, filelock.ErrTaken) {
		return err
	}
	return share(ctx, file) // the attempt gave it up, too
}

// remove removes what was added, and closes the directories. What a process that outlived its step does meanwhile is
// left to the next one.
func (a added) remove() error {
	for _, path := range a.paths {
		parent := filepath.Dir(path)
		for _, err := range []error{os.Chmod(parent, 0o700), rmtree.Remove(path), os.Chmod(parent, 0o555)} {
			if unlessGone(err) != nil && !errors.Is(err, syscall.ENOTEMPTY) {
				return fmt.Errorf("remove what a step has added to its directory: %w", err)
			}
		}
	}
	for _, path := range a.open {
		if err := os.Chmod(path, 0o555); unlessGone(err) != nil {
			return err
		}
	}
	return nil
}
