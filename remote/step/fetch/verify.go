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
	"path"
	"path/filepath"
	"syscall"

	"github.com/stepmux/stepmux/internal/filelock"
	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/remote/step/component"
)

// errDamaged says that files of a component were changed.
var errDamaged = errors.New("the component was changed")

// stamp is a digest of the inode numbers, sizes, modes and change times of a component's files. No process can set a
// change time.
type stamp [sha256.Size]byte

// verify compares a component with its digest. file is its meta.json, with the read lock. If the stamp is the same as
// when this process last compared the files, verify does not compare them again.
//
// Steps may have added files, such as the compiled files that interpreters keep beside the source. Those are removed,
// unless another process uses the component. The error is filelock.ErrTaken if another process removed the component.
func (c *cache) verify(ctx context.Context, tree string, file *os.File) error {
	nodes, err := c.nodes(tree)
	if err != nil {
		return err
	}
	dir := c.path(compDir, tree, treeName)
	now, added, err := scan(ctx, dir, nodes)
	if last, _ := c.verified.Load(tree); err != nil || last == now {
		return err
	}
	if !added.empty() {
		if err := removeAdded(ctx, file, added); err != nil {
			return err
		}
		if now, added, err = scan(ctx, dir, nodes); err != nil {
			return err
		}
	}
	if err := compare(ctx, dir, nodes); err != nil {
		return err
	}
	if added.empty() { // otherwise the next call tries to remove them
		c.verified.Store(tree, now)
	}
	return nil
}

// ignoreNotExist returns nil if err means that a file does not exist, and err otherwise.
func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	return err
}

// damagedIfMissing returns errDamaged if err means that a file does not exist, and err otherwise. err is not nil.
func damagedIfMissing(err error) error { return cmp.Or(ignoreNotExist(err), errDamaged) }

// nodes reads the nodes of the component tree from its meta.json.
func (c *cache) nodes(tree string) ([]node, error) {
	data, err := os.ReadFile(c.path(compDir, tree, metaName))
	if err != nil {
		return nil, damagedIfMissing(err)
	}
	var m meta
	if json.Unmarshal(data, &m) != nil || component.Digest(m.Nodes) != tree {
		return nil, errDamaged
	}
	return m.Nodes, nil
}

// compare compares the files in dir with nodes. A component with links that are refused today counts as changed:
// earlier versions accepted some of them.
func compare(ctx context.Context, dir string, nodes []node) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return damagedIfMissing(err)
	}
	defer root.Close()
	links := map[string]string{}
	for _, n := range nodes {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := checkNode(n, root); err != nil {
			return err
		}
		if n.Mode == modeSymlink {
			if links[n.Path], err = root.Readlink(n.Path); err != nil {
				return damagedIfMissing(err)
			}
		}
	}
	if err := checkLinks(ctx, links, maxParts); err == nil || ctx.Err() != nil {
		return err
	}
	return errDamaged
}

// check compares the entry in root with n.
func checkNode(n node, root *os.Root) error {
	info, err := root.Lstat(n.Path)
	if err != nil {
		return damagedIfMissing(err)
	}
	is, readOnly := component.EmptyDir(n.Path), info.Mode() == 0o444 || info.Mode() == 0o555
	switch {
	case info.IsDir():
	case info.Size() != n.Size, !readOnly && info.Mode().Type() != fs.ModeSymlink:
		return errDamaged
	default:
		is, err = component.NodeOf(root, n.Path, info, func(string, fs.FileInfo) (string, error) {
			file, err := root.Open(n.Path)
			if err != nil {
				return "", damagedIfMissing(err)
			}
			defer file.Close()
			h := sha256.New()
			_, err = io.Copy(h, file)
			return fmt.Sprintf("%x", h.Sum(nil)), err
		})
	}
	switch {
	case err != nil:
		return fmt.Errorf("read component: %w", damagedIfMissing(err))
	case is != n:
		return errDamaged
	}
	return nil
}

// added has the additions of steps to a component whose own files are unchanged.
type added struct {
	paths []string // files and directories that do not belong to the component
	open  []string // directories of the component that are no longer read-only
}

func (a added) empty() bool { return len(a.paths)+len(a.open) == 0 }

// scan returns the stamp of the files in dir, and the additions of steps to nodes. It skips files that disappear:
// compare notices a missing file of the component, and any other file may disappear at any time.
func scan(ctx context.Context, dir string, nodes []node) (stamp, added, error) {
	known := map[string]bool{".": true}
	for _, n := range nodes {
		for p := n.Path; !known[p]; p = path.Dir(p) {
			known[p] = true
		}
	}
	var a added
	h := sha256.New()
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil {
			info, err = d.Info()
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, syscall.ENAMETOOLONG): // earlier versions accepted components of any depth
			return errDamaged
		case err != nil:
			return ignoreNotExist(err)
		}
		st := info.Sys().(*syscall.Stat_t)
		fields := [6]int64{int64(st.Ino), st.Size, int64(st.Mode), st.Ctim.Sec, st.Ctim.Nsec, int64(len(name))}
		_ = binary.Write(h, binary.LittleEndian, fields[:])
		_, _ = io.WriteString(h, name)
		at := filepath.Join(dir, name)
		switch {
		case !known[name]:
			a.paths = append(a.paths, at)
			if info.IsDir() {
				return fs.SkipDir
			}
		case info.IsDir() && info.Mode().Perm() != 0o555:
			a.open = append(a.open, at)
		}
		return nil
	})
	return stamp(h.Sum(nil)), a, err
}

// removeAdded removes the additions to a component, unless another process uses it. file is the component's meta.json,
// whose read lock it has before and after; it waits for the lock only while it has none. The error is filelock.ErrTaken
// if the component was removed.
func removeAdded(ctx context.Context, file *os.File, a added) error {
	filelock.Unlock(file)
	alone, err := filelock.ClaimWrite(file.Name())
	if err == nil {
		err = a.remove()
		filelock.Release(alone)
	}
	if err != nil && !errors.Is(err, filelock.ErrTaken) {
		return err
	}
	return share(ctx, file)
}

// remove removes the additions, and makes the directories read-only again. A process that outlived its step may add
// more at the same time; the next call removes that.
func (a added) remove() error {
	for _, at := range a.paths {
		parent := filepath.Dir(at)
		for _, err := range []error{os.Chmod(parent, 0o700), rmtree.Remove(at), os.Chmod(parent, 0o555)} {
			if ignoreNotExist(err) != nil && !errors.Is(err, syscall.ENOTEMPTY) {
				return fmt.Errorf("remove files that a step has added to its directory: %w", err)
			}
		}
	}
	for _, dir := range a.open {
		if err := os.Chmod(dir, 0o555); ignoreNotExist(err) != nil {
			return err
		}
	}
	return nil
}
