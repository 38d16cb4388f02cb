package replay

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/internal/filesum"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/step/fetch"
	"github.com/stepmux/stepmux/remote/step/lang"
	"github.com/stepmux/stepmux/remote/step/trace"
	"github.com/stepmux/stepmux/remote/step/trace/recording"
)

const (
	// maxEntries and maxBytes bound the directory of a local step.
	maxEntries = 100_000
	maxBytes   = 1 << 30
)

// changedLocals names the changed steps of the project.
func changedLocals(id *trace.Identity, paths *recording.Paths) (reasons []string) {
	seen := map[string]bool{}
	visit(id.Steps, nil, "", func(s *trace.Step, _ *pb.Step, name string) {
		c := s.Component
		if c == nil || c.Kind != trace.Local || strings.HasPrefix(c.Location, trace.CacheDir+"/") {
			return
		}
		key := fmt.Sprint(c.Location, "\x00", c.File, c.Digest)
		if seen[key] {
			return
		}
		seen[key] = true
		if err := checkLocal(c, paths.Expand(c.Location)); err != nil {
			reasons = append(reasons, fmt.Sprintf("step %s: %s: %v", graphic(name), shownPath(c.Location), err))
		}
	})
	return reasons
}

// checkLocal compares the step in dir with its digests: first its file, then the whole directory.
func checkLocal(c *trace.Component, dir string) error {
	if !filepath.IsAbs(dir) || c.File == "" || strings.Contains(c.File, "/") || c.Digest[trace.SHA256] == "" {
		return errors.New("the trace has no directory or no digest of it")
	}
	data, err := boundedfile.ReadBy(os.OpenFile, filepath.Join(dir, c.File), lang.MaxText)
	if err != nil {
		return err
	}
	if is := fmt.Sprintf("%x", sha256.Sum256(data)); is != c.Digest[trace.SHA256] {
		return &fetch.ChangedError{Kind: c.File, Was: c.Digest[trace.SHA256], Is: is}
	}
	was := c.Digest[trace.SHA256Tree]
	if was == "" {
		return nil
	}
	is, err := component.DirTree(dir, maxEntries, maxBytes,
		func(path string, _ fs.FileInfo) (string, error) { return filesum.SHA256(os.OpenFile, path) })
	if err != nil {
		return err
	}
	if is != was {
		return &fetch.ChangedError{Kind: "directory", Was: was, Is: is}
	}
	return nil
}
