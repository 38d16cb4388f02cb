package component

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/stepmux/stepmux/internal/filelock"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// Source is the identity and the origin of a component. Fields that do not apply are empty.
type Source struct {
	// Kind is git, zip or oci.
	Kind string `json:"kind"`
	// Location is where it came from, without credentials: a URL, or registry/repository.
	Location string `json:"location"`
	// Version is the requested branch, tag, commit or digest.
	Version string `json:"-"`
	// ResolvedRef is the ref of the repository to which Version led, such as refs/tags/v1.
	ResolvedRef string `json:"-"`
	// Commit and GitTree are the names of the commit and of its tree.
	Commit  string `json:"commit,omitempty"`
	GitTree string `json:"git_tree,omitempty"`
	// Digest is the digest of the archive or of the image's manifest, as sha256:<hex>.
	Digest string `json:"digest,omitempty"`
	// Tree is the digest of the files, as sha256:<hex>. It is the SHA-256 of a line "<mode> <path>\x00<sha256>\n" for
	// each file, symbolic link (sha256 of its target) and empty directory (sha256 of no bytes), sorted by path. So
	// equal files have equal digests, whatever their source.
	Tree string `json:"tree"`
}

// The values of Source.Kind.
const (
	KindGit = "git"
	KindZip = "zip"
	KindOCI = "oci"
)

// Component is a fetched step, with everything that was fetched with it. Its files must not be changed.
type Component struct {
	Source
	// Root is the directory of all fetched files. No symbolic link in it leads out of it.
	Root string
	// Dir is the directory of the step, Root or below. It may not exist.
	Dir string
	// File is the file in Dir that defines the step. If empty, one of the usual names.
	File string
	// Cached says that the component was in the cache already.
	Cached bool

	held *os.File // locked, so that the component is not removed
}

// Hold gives the component a locked file. Release closes it.
func (c *Component) Hold(locked *os.File) { c.held = locked }

// Release ends the use of the component: the cache may remove it then. It is idempotent.
func (c *Component) Release() {
	if c.held != nil {
		filelock.Release(c.held)
	}
}

// Place sets Dir and File to those of the step called name below dir.
func (c *Component) Place(dir, file, name string) {
	c.Dir, c.File = filepath.Join(c.Root, filepath.FromSlash(dir)), file
	if name == "" {
		return
	}
	c.Dir = filepath.Join(c.Dir, filepath.FromSlash(name))
	if info, err := os.Stat(c.Dir + ".yml"); err == nil && info.Mode().IsRegular() {
		c.Dir, c.File = filepath.Dir(c.Dir), filepath.Base(c.Dir)+".yml"
	}
}

// For returns the step that ref names, if ref has the repository and the version of c. So a job that refers to a branch
// twice gets the same commit both times. The result is valid until c is released.
func (c *Component) For(ref *pb.Reference) (*Component, bool) {
	if ref.GetProtocol() != pb.Reference_git || c.Kind != KindGit || ref.GetRev() != c.Version {
		return nil, false
	}
	rest, found := strings.CutPrefix(lang.WithoutUserinfo(ref.GetUrl()), c.Location)
	if !found || rest != "" && (!ref.GetOpen() || !strings.HasPrefix(rest, "/")) {
		return nil, false
	}
	same := *c
	same.Cached, same.held = true, nil
	same.Place(ref.GetPath(), ref.GetFile(), strings.Trim(rest, "/"))
	return &same, true
}
