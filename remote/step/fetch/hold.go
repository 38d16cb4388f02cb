package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/filelock"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/remote/step/component"
)

const (
	treeName = "tree"      // the files of a component
	metaName = "meta.json" // list of its nodes; each user of the component holds a read lock on it
)

// meta lists the nodes of a component, in its directory. Their digest is the component's name.
type meta struct {
	Nodes []node `json:"nodes"`
}

// hold returns the meta.json of the component tree, locked so that the component is not removed. It is nil if there is
// no such component.
func (c *cache) hold(ctx context.Context, tree string) (*os.File, error) {
	path := c.path(compDir, tree, metaName)
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err = share(ctx, file); err == nil {
		return file, nil
	}
	filelock.Release(file)
	if errors.Is(err, filelock.ErrTaken) { // it was removed
		err = nil
	}
	return nil, err
}

// share takes the read lock of file, a meta.json. Another process with the write lock is about to remove the component,
// or files that steps have added to it. An isolated job cannot take that lock, because it cannot write the file. The
// error is filelock.ErrTaken if the component was removed.
func share(ctx context.Context, file *os.File) error {
	return pause.Until(ctx, func() (bool, error) {
		err := filelock.TryRead(file)
		switch {
		case !filelock.StillAt(file, file.Name()):
			return false, filelock.ErrTaken
		case errors.Is(err, filelock.ErrTaken):
			return false, nil
		}
		return true, err
	})
}

// component returns the component of e, or nil if the cache does not have it or its files were changed.
func (c *cache) component(ctx context.Context, e entry) (*Component, error) {
	file, err := c.hold(ctx, e.Source.Tree)
	if file == nil || err != nil {
		return nil, err
	}
	err = c.verify(ctx, e.Source.Tree, file)
	if err == nil {
		return c.use(e.Source, file), nil
	}
	filelock.Release(file)
	switch {
	case errors.Is(err, filelock.ErrTaken): // it was removed
		return nil, nil
	case !errors.Is(err, errDamaged):
		return nil, err
	}
	if err = c.evict(e.Source.Tree); errors.Is(err, filelock.ErrTaken) {
		err = fmt.Errorf("a step has changed files in %s, and others use them; try again when these have ended",
			c.path(compDir, e.Source.Tree))
	}
	return nil, err
}

// usedEvery is the resolution at which the cache records the last use of a component.
const usedEvery = time.Minute

// use returns the component s, which holds file, its locked meta.json.
func (c *cache) use(s Source, file *os.File) *Component {
	now := time.Now()
	if info, err := file.Stat(); err == nil && now.Sub(info.ModTime()) > usedEvery {
		_ = os.Chtimes(file.Name(), now, now) // if it fails, the component only looks older
	}
	root := c.path(compDir, s.Tree, treeName)
	s.Tree = digestPrefix + s.Tree
	used := &Component{Source: s, Root: root, Dir: root}
	used.Hold(file)
	return used
}

// evict removes the component tree. The error is filelock.ErrTaken if the component is in use.
func (c *cache) evict(tree string) error {
	tmp, err := c.scratch()
	if err != nil {
		return err
	}
	defer tmp.remove()
	dir := c.path(compDir, tree)
	file, err := filelock.ClaimWrite(filepath.Join(dir, metaName))
	if err == nil {
		defer filelock.Release(file)
	} else if _, there := os.Lstat(filepath.Join(dir, metaName)); !errors.Is(there, fs.ErrNotExist) {
		return err
	} // otherwise another process removes it, or its meta.json is lost
	if err := os.Rename(dir, filepath.Join(tmp.path, compDir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	c.verified.Delete(tree)
	return nil
}

// publish moves dir, which has the files in nodes, to its place in the cache. It returns the component with its lock,
// and its name.
func (c *cache) publish(ctx context.Context, dir string, nodes []node) (*Component, string, error) {
	tree := component.Digest(nodes)
	data, err := json.Marshal(meta{nodes})
	if err != nil {
		return nil, "", err
	}
	if err := os.WriteFile(filepath.Join(dir, metaName), data, 0o600); err != nil {
		return nil, "", err
	}
	for {
		err := os.Rename(dir, c.path(compDir, tree))
		if err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, unix.ENOTEMPTY) {
			return nil, "", err
		}
		// Equal files from another source may be there already, and may be damaged.
		there, err := c.component(ctx, entry{Source: Source{Tree: tree}})
		if err != nil {
			return nil, "", err
		}
		if there != nil {
			return there, tree, nil
		}
		if _, err := os.Lstat(dir); err != nil {
			return nil, "", errors.New("another process removed it at once; is the cache too small?")
		}
		if err := c.evict(tree); err != nil {
			return nil, "", err
		}
	}
}
