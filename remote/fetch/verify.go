package fetch

import (
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

	"github.com/stepmux/stepmux/internal/rmtree"
)

// errDamaged says that the files of a component are not what they were.
var errDamaged = errors.New("the component was changed")

// stamp is what the system says of all files of a component: their numbers, sizes and times of change, which nobody can
// set back.
type stamp [sha256.Size]byte

// verify compares a component, which is held, with its digest. If the system says that nothing has changed since this
// process did so last, that is enough. What a step has added, as interpreters do that keep what they compiled beside
// its source, is removed.
func (c *cache) verify(tree string) error {
	now, err := fingerprint(c.path(compDir, tree, treeName))
	if err != nil {
		return err
	}
	c.mu.Lock()
	same := c.verified[tree] == now
	c.mu.Unlock()
	if same {
		return nil
	}
	if err := c.compare(tree); err != nil {
		return err
	}
	if now, err = fingerprint(c.path(compDir, tree, treeName)); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.verified[tree] = now
	return nil
}

// fingerprint returns the print of the files in dir.
func fingerprint(dir string) (stamp, error) {
	h := sha256.New()
	var fields [6]int64
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		fields = [6]int64{int64(st.Ino), st.Size, int64(st.Mode), st.Ctim.Sec, st.Ctim.Nsec, int64(len(path))}
		_ = binary.Write(h, binary.LittleEndian, fields[:])
		_, _ = io.WriteString(h, path)
		return nil
	})
	if err != nil {
		return stamp{}, gone(err)
	}
	return stamp(h.Sum(nil)), nil
}

// gone makes errDamaged of an error that says that something is not there.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return errDamaged
	}
	return err
}

// compare reads a component and compares it with its digest.
func (c *cache) compare(tree string) error {
	data, err := os.ReadFile(c.path(compDir, tree, metaName))
	if err != nil {
		return gone(err)
	}
	var m meta
	if json.Unmarshal(data, &m) != nil || treeDigest(m.Nodes) != tree {
		return errDamaged
	}
	dir := c.path(compDir, tree, treeName)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return gone(err)
	}
	defer root.Close()
	known := map[string]bool{".": true}
	for _, n := range m.Nodes {
		if err := n.check(root); err != nil {
			return err
		}
		for p := n.Path; !known[p]; p = filepath.Dir(p) {
			known[p] = true
		}
	}
	return removeOthers(dir, known)
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

// removeOthers removes from dir what is not known. Directories that a step has made writable are closed again.
func removeOthers(dir string, known map[string]bool) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return gone(err)
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if known[rel] {
			if d.IsDir() {
				return os.Chmod(path, 0o555)
			}
			return nil
		}
		parent := filepath.Dir(path)
		if err := os.Chmod(parent, 0o700); err != nil {
			return err
		}
		if err := errors.Join(rmtree.Remove(path), os.Chmod(parent, 0o555)); err != nil {
			return fmt.Errorf("remove what a step has added to its directory: %w", err)
		}
		if d.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
}
