package fetch

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// gitProof has the parts of a commit that its files do not tell. With them the names of the tree and of the commit are
// computed from the files, whoever claims them: the server, or the index of the cache.
type gitProof struct {
	// Commit is the commit as git stores it. It begins with the name of its tree.
	Commit []byte `json:"commit"`
	// Links are the commits of its submodules, by path.
	Links map[string]string `json:"links,omitempty"`
}

// maxCommit bounds the text of a commit that is kept, in bytes.
const maxCommit = 1 << 20

// prove checks that the component tree has the files of the commit that s names. The error is errDamaged if it has
// not. It reads all files, once for each process.
func (c *cache) prove(tree string, s Source, proof *gitProof) error {
	if proof == nil {
		return errDamaged
	}
	known := s.Commit + tree
	if _, proved := c.proved.Load(known); proved {
		return nil
	}
	nodes, err := c.nodes(tree)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(c.path(compDir, tree, treeName))
	if err != nil {
		return damagedIfMissing(err)
	}
	defer root.Close()
	g := gitNames{sha1.New}
	if len(s.Commit) == 2*sha256.Size {
		g = gitNames{sha256.New}
	}
	top := &gitDir{}
	for _, n := range nodes {
		mode := n.Mode
		var id []byte
		if mode == modeDir { // git has no empty directories: it is a submodule
			mode = modeGitlink
			id, err = hex.DecodeString(proof.Links[n.Path])
		} else {
			id, err = g.file(root, n)
		}
		if err != nil || len(id) != g.new().Size() {
			return errors.Join(errDamaged, err)
		}
		top.add(n.Path, mode, id)
	}
	is := fmt.Sprintf("%x", g.tree(top))
	commit, err := g.name("commit", int64(len(proof.Commit)), bytes.NewReader(proof.Commit))
	if err != nil || is != s.GitTree || fmt.Sprintf("%x", commit) != s.Commit ||
		!bytes.HasPrefix(proof.Commit, []byte("tree "+is+"\n")) {
		return errDamaged
	}
	c.proved.Store(known, true)
	return nil
}

// gitNames computes the names of git's objects: digests of their kind, size and content.
type gitNames struct{ new func() hash.Hash }

func (g gitNames) name(kind string, size int64, content io.Reader) ([]byte, error) {
	h := g.new()
	fmt.Fprintf(h, "%s %d\x00", kind, size)
	if n, err := io.Copy(h, content); err != nil || n != size {
		return nil, errors.Join(errDamaged, err)
	}
	return h.Sum(nil), nil
}

// file returns the name of a file or a symbolic link.
func (g gitNames) file(root *os.Root, n node) ([]byte, error) {
	if n.Mode == modeSymlink {
		target, err := root.Readlink(n.Path)
		if err != nil {
			return nil, err
		}
		return g.name("blob", n.Size, strings.NewReader(target))
	}
	file, err := root.Open(n.Path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return g.name("blob", n.Size, file)
}

// gitDir is a directory of a commit. Its entries are in the order of git: by name, with / after those of directories.
type gitDir struct {
	entries map[string][]byte // "<mode> <name>\x00<id>", by their place in the order
	dirs    map[string]*gitDir
}

func (d *gitDir) add(path, mode string, id []byte) {
	if d.entries == nil {
		d.entries, d.dirs = map[string][]byte{}, map[string]*gitDir{}
	}
	name, rest, below := strings.Cut(path, "/")
	if !below {
		d.entries[name] = fmt.Appendf(nil, "%s %s\x00%s", mode, name, id)
		return
	}
	if d.dirs[name] == nil {
		d.dirs[name] = &gitDir{}
	}
	d.dirs[name].add(rest, mode, id)
}

// tree returns the name of the tree of d.
func (g gitNames) tree(d *gitDir) []byte {
	for name, dir := range d.dirs {
		d.entries[name+"/"] = fmt.Appendf(nil, "40000 %s\x00%s", name, g.tree(dir))
	}
	var all []byte
	for _, name := range slices.Sorted(maps.Keys(d.entries)) {
		all = append(all, d.entries[name]...)
	}
	id, _ := g.name("tree", int64(len(all)), bytes.NewReader(all)) // reading memory does not fail
	return id
}
