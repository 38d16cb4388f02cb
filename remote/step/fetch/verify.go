package fetch

import (
	"cmp"
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

// errDamaged says that files of a component were changed.
var errDamaged = errors.New("the component was changed")

// stamp is a digest of the inode numbers, sizes, modes and change times of a component's files. No process can set back
// a change time.
type stamp [sha256.Size]byte

// verify compares a component with its digest. file is its meta.json, with the shared lock. An unchanged stamp since
// this process last compared the files is enough. Files that steps have added, such as the compiled files that
// interpreters keep beside the source, do not count: they are removed, unless another process uses the component. The
// error is filelock.ErrTaken if the component was removed meanwhile.
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
	if !added.empty() {
		if err := removeAdded(ctx, file, added); err != nil {
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
	if added.empty() { // else the next call tries to remove them
		c.mu.Lock()
		defer c.mu.Unlock()
		c.verified[tree] = now
	}
	return nil
}

// fingerprint returns the stamp of the files in dir. It skips files that vanish meanwhile: compare notices a missing
// file of the component, and any other file may go at any time.
func fingerprint(dir string) (stamp, error) {
	h := sha256.New()
	var fields [6]int64
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return ignoreNotExist(err)
		}
		info, err := d.Info()
		if err != nil {
			return ignoreNotExist(err)
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

// ignoreNotExist returns nil if err means that a file does not exist, and err otherwise.
func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	return err
}

// damagedIfMissing returns errDamaged if err, which is not nil, means that a file does not exist, and err otherwise.
func damagedIfMissing(err error) error { return cmp.Or(ignoreNotExist(err), errDamaged) }

// nodes returns the nodes of the component tree by its meta.json.
func (c *cache) nodes(tree string) ([]node, error) {
	data, err := os.ReadFile(c.path(compDir, tree, metaName))
	if err != nil {
		return nil, damagedIfMissing(err)
	}
	var m meta
	if json.Unmarshal(data, &m) != nil || treeDigest(m.Nodes) != tree {
		return nil, errDamaged
	}
	return m.Nodes, nil
}

// compare compares the files in dir with nodes.
func compare(dir string, nodes []node) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return damagedIfMissing(err)
	}
	defer root.Close()
	for _, n := range nodes {
		if err := n.check(root); err != nil {
			return err
		}
	}
	return nil
}

// check compares the entry in root with n.
func (n node) check(root *os.Root) error {
	info, err := root.Lstat(n.Path)
	if err != nil {
		return damagedIfMissing(err)
	}
	var digest [sha256.Size]byte
	mode := ""
	switch {
	case info.IsDir():
		mode, digest = modeDir, sha256.Sum256(nil)
	case info.Mode().Type() == fs.ModeSymlink:
		target, err := root.Readlink(n.Path)
		if err != nil {
			return damagedIfMissing(err)
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
			return damagedIfMissing(err)
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

// added has the additions of steps to a component. The files of the component are unchanged.
type added struct {
	paths []string // files and directories that do not belong to the component
	open  []string // directories of the component that are no longer read-only
}

func (a added) empty() bool { return len(a.paths)+len(a.open) == 0 }

// findAdded returns the additions of steps to the nodes in dir.
func findAdded(dir string, nodes []node) (a added, err error) {
	known := map[string]bool{".": true}
	for _, n := range nodes {
		for p := n.Path; !known[p]; p = filepath.Dir(p) {
			known[p] = true
		}
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return ignoreNotExist(err)
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
				return ignoreNotExist(err)
			}
			if info.Mode().Perm() != 0o555 {
				a.open = append(a.open, path)
			}
		}
		return nil
	})
	return a, err
}

// removeAdded removes the additions to a component, unless another process uses it. file is the component's meta.json,
// whose shared lock it has before and after; it waits for the lock only while it has none. The error is
// filelock.ErrTaken if the component was removed.
func removeAdded(ctx context.Context, file *os.File, a added) error {
	err := filelock.Try(file)
	if err == nil {
		err = a.remove()
	}
	if err != nil && !errors.Is(err, filelock.ErrTaken) {
		return err
	}
	return share(ctx, file) // the attempt gave up the shared lock
}

// remove removes the additions, and makes the directories read-only again. If a process that outlived its step adds
// more meanwhile, the next call removes that.
func (a added) remove() error {
	for _, path := range a.paths {
		parent := filepath.Dir(path)
		for _, err := range []error{os.Chmod(parent, 0o700), rmtree.Remove(path), os.Chmod(parent, 0o555)} {
			if ignoreNotExist(err) != nil && !errors.Is(err, syscall.ENOTEMPTY) {
				return fmt.Errorf("remove files that a step has added to its directory: %w", err)
			}
		}
	}
	for _, path := range a.open {
		if err := os.Chmod(path, 0o555); ignoreNotExist(err) != nil {
			return err
		}
	}
	return nil
}
