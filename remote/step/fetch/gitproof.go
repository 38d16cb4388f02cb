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
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// gitProof has the parts of a commit that are not in its files. With them, the names of the tree, of the commit and of
// tags can be computed from the files. So neither the server nor the index of the cache has to be trusted.
type gitProof struct {
	// Commit is the commit as git stores it. It begins with the name of its tree.
	Commit []byte `json:"commit"`
	// Tags are tag objects as git stores them, if a tag object was asked for. Each one names the next, and the last one
	// the commit.
	Tags [][]byte `json:"tags,omitempty"`
	// Links are the commits of its submodules, by path.
	Links map[string]string `json:"links,omitempty"`
	// Modes are the modes that git no longer writes today, such as 100664, by path.
	Modes map[string]string `json:"modes,omitempty"`
	// Empty are the paths of the directories without entries. Neither a component nor a checkout has them.
	Empty []string `json:"empty,omitempty"`
}

const (
	maxCommit = 1 << 20 // bounds a commit or a tag object that is kept, in bytes
	maxTags   = 10      // bounds the tag objects that lead to a commit
)

// prove checks that the component tree has the files of the commit in s. The error is errDamaged if it does not. It
// reads all files, once for each process.
func (c *cache) prove(tree string, s Source, proof *gitProof) error {
	if proof == nil {
		return errDamaged
	}
	known := provedKey(tree, s, proof)
	if _, proved := c.proved.Load(known); proved {
		return nil
	}
	nodes, err := c.nodes(tree)
	if err != nil {
		return err
	}
	if err := proof.check(c.path(compDir, tree, treeName), nodes, s); err != nil {
		return err
	}
	c.proved.Store(known, true)
	return nil
}

// provedKey returns the key in cache.proved for a component and all facts that its proof is about.
func provedKey(tree string, s Source, proof *gitProof) string {
	return keyOf(tree, s.Commit, proof.named(s.Commit))
}

// named returns the first name in the proof: that of the first tag object or, without tags, the commit's.
func (p *gitProof) named(commit string) string {
	if p == nil || len(p.Tags) == 0 {
		return commit
	}
	return namesOf(commit).text("tag", p.Tags[0])
}

// withoutTags returns the proof that is about the commit only.
func (p *gitProof) withoutTags() *gitProof {
	of := *p
	of.Tags = nil
	return &of
}

// size returns the bytes of the parts of a proof that grow with the number of files.
func (p *gitProof) size() (n int64) {
	for _, m := range []map[string]string{p.Links, p.Modes} {
		for path, text := range m {
			n += int64(len(path) + len(text))
		}
	}
	for _, path := range p.Empty {
		n += int64(len(path))
	}
	return n
}

// check checks that the files in dir, whose list is nodes, are those of the commit in s.
func (p *gitProof) check(dir string, nodes []node, s Source) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return damagedIfMissing(err)
	}
	defer root.Close()
	g := namesOf(s.Commit)
	top := &gitDir{}
	for _, n := range nodes {
		is := n.Mode
		var id []byte
		if is == modeDir { // each empty directory of a component is a submodule
			is = modeGitlink
			id, err = hex.DecodeString(p.Links[n.Path])
		} else {
			id, err = g.file(root, n)
		}
		if err != nil || len(id) != g.new().Size() {
			return errors.Join(errDamaged, err)
		}
		mode, err := p.mode(n.Path, is)
		if err != nil {
			return err
		}
		parent, name := path.Split(n.Path)
		top.below(parent).add(name, name, mode, id)
	}
	for _, empty := range p.Empty {
		if checkPath(empty) != nil {
			return errDamaged
		}
		top.below(empty)
	}
	id, err := g.tree(top, p, "")
	if err != nil {
		return err
	}
	is := fmt.Sprintf("%x", id)
	if is != s.GitTree || g.text("commit", p.Commit) != s.Commit || !bytes.HasPrefix(p.Commit, []byte("tree "+is+"\n")) {
		return errDamaged
	}
	return p.checkTags(g, s.Commit)
}

// checkTags checks that each tag object leads to the next, and the last one to the commit.
func (p *gitProof) checkTags(g gitNames, commit string) error {
	next := commit
	for i, tag := range slices.Backward(p.Tags) {
		kind := "tag"
		if i == len(p.Tags)-1 {
			kind = "commit"
		}
		if !bytes.HasPrefix(tag, fmt.Appendf(nil, "object %s\ntype %s\n", next, kind)) {
			return errDamaged
		}
		next = g.text("tag", tag)
	}
	return nil
}

// mode returns the mode of the entry at path in the commit. current is the mode that git writes for it today.
func (p *gitProof) mode(path, current string) (string, error) {
	odd, found := p.Modes[path]
	switch {
	case !found:
		return treeMode(current), nil
	case canonicalMode(odd) != current:
		return "", errDamaged
	}
	return odd, nil
}

// treeMode returns a mode as git writes it into trees.
func treeMode(mode string) string { return strings.TrimPrefix(mode, "0") }

// canonicalMode returns today's form of a mode in a tree, or "" for an unknown mode.
func canonicalMode(mode string) string {
	bits, err := strconv.ParseUint(mode, 8, 32)
	switch kind := bits & unix.S_IFMT; {
	case err != nil:
		return ""
	case kind == unix.S_IFREG && bits&0o100 != 0:
		return modeExecutable
	case kind == unix.S_IFREG:
		return modeFile
	case kind == unix.S_IFLNK:
		return modeSymlink
	case kind == unix.S_IFDIR:
		return modeDir
	default:
		return modeGitlink
	}
}

// gitNames computes the names of git's objects: digests of their kind, size and content.
type gitNames struct{ new func() hash.Hash }

// namesOf returns the algorithm by which the name of a commit was computed.
func namesOf(commit string) gitNames {
	if len(commit) == 2*sha256.Size {
		return gitNames{sha256.New}
	}
	return gitNames{sha1.New}
}

func (g gitNames) name(kind string, size int64, content io.Reader) ([]byte, error) {
	h := g.new()
	fmt.Fprintf(h, "%s %d\x00", kind, size)
	if n, err := io.Copy(h, content); err != nil || n != size {
		return nil, errors.Join(errDamaged, err)
	}
	return h.Sum(nil), nil
}

// text returns the name of an object in memory, in hexadecimal.
func (g gitNames) text(kind string, content []byte) string {
	id, _ := g.name(kind, int64(len(content)), bytes.NewReader(content)) // reading memory does not fail
	return hex.EncodeToString(id)
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

// below returns the directory at a path below d, made if missing.
func (d *gitDir) below(at string) *gitDir {
	for name := range strings.SplitSeq(at, "/") {
		if name == "" { // after the last /
			continue
		}
		if d.dirs[name] == nil {
			if d.dirs == nil {
				d.dirs = map[string]*gitDir{}
			}
			d.dirs[name] = &gitDir{}
		}
		d = d.dirs[name]
	}
	return d
}

func (d *gitDir) add(place, name, mode string, id []byte) {
	if d.entries == nil {
		d.entries = map[string][]byte{}
	}
	d.entries[place] = fmt.Appendf(nil, "%s %s\x00%s", mode, name, id)
}

// tree returns the name of the tree of d, which is at a path of the commit.
func (g gitNames) tree(d *gitDir, p *gitProof, at string) ([]byte, error) {
	for name, dir := range d.dirs {
		below := path.Join(at, name)
		id, err := g.tree(dir, p, below)
		if err != nil {
			return nil, err
		}
		mode, err := p.mode(below, modeDir)
		if err != nil {
			return nil, err
		}
		d.add(name+"/", name, mode, id)
	}
	var all []byte
	for _, name := range slices.Sorted(maps.Keys(d.entries)) {
		all = append(all, d.entries[name]...)
	}
	return g.name("tree", int64(len(all)), bytes.NewReader(all))
}
