package fetch

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/stepmux/stepmux/internal/filelock"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// Source says what a component is and where it came from. What does not apply is empty.
type Source struct {
	// Kind is git, zip or oci.
	Kind string `json:"kind"`
	// Location is where it came from, without credentials: a URL, or registry/repository.
	Location string `json:"location"`
	// Version is what was asked for: a branch, a tag, a commit or a digest.
	Version string `json:"-"`
	// ResolvedRef is the ref of the repository that Version named, such as refs/tags/v1.
	ResolvedRef string `json:"-"`
	// Commit and GitTree are the names of the commit and of its tree.
	Commit  string `json:"commit,omitempty"`
	GitTree string `json:"git_tree,omitempty"`
	// Digest is that of the archive or of the image's manifest, as sha256:<hex>.
	Digest string `json:"digest,omitempty"`
	// Tree is the digest of the files, as sha256:<hex>: of a line "<mode> <path>\x00<sha256>\n" for each file, symbolic
	// link (of its target) and empty directory (of nothing), sorted by path. Equal files have equal ones wherever they
	// came from.
	Tree string `json:"tree"`
}

// Component is a step that was fetched, with all that was fetched with it. Its files must not be changed.
type Component struct {
	Source
	// Root is the directory that holds all that was fetched. No symbolic link in it leaves it.
	Root string
	// Dir is the directory of the step, Root or below. It may not be there.
	Dir string
	// File is the file that defines the step, in Dir. If empty, the usual ones.
	File string
	// Cached tells that it was in the cache already.
	Cached bool

	held *os.File // keeps it from being removed
}

// Release tells that the component is no longer used: it may be removed from then on. It is idempotent.
func (c *Component) Release() {
	if c.held != nil {
		filelock.Release(c.held)
	}
}

func (c *Component) file() *os.File {
	if c == nil {
		return nil
	}
	return c.held
}

// place sets where the step is that is called name, below dir.
func (c *Component) place(dir, file, name string) {
	c.Dir, c.File = filepath.Join(c.Root, filepath.FromSlash(dir)), file
	if name == "" {
		return
	}
	named := filepath.Join(c.Dir, filepath.FromSlash(name))
	c.Dir = named
	if info, err := os.Stat(named + ".yml"); err == nil && info.Mode().IsRegular() {
		c.Dir, c.File = filepath.Split(named + ".yml")
		c.Dir = filepath.Clean(c.Dir)
	}
}

// For returns the step that ref says if it is of the same repository and the same version as c. A job that refers
// twice to a branch gets the same commit both times. It is there until c is released.
func (c *Component) For(ref *pb.Reference) (*Component, bool) {
	if ref.GetProtocol() != pb.Reference_git || c.Kind != kindGit || ref.GetRev() != c.Version {
		return nil, false
	}
	rest, found := strings.CutPrefix(lang.WithoutUserinfo(ref.GetUrl()), c.Location)
	if !found || rest != "" && (!ref.GetOpen() || !strings.HasPrefix(rest, "/")) {
		return nil, false
	}
	same := *c
	same.Cached, same.held = true, nil
	same.place(ref.GetPath(), ref.GetFile(), strings.Trim(rest, "/"))
	return &same, true
}
