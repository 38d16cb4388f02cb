package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/rmtree"
)

// scriptDir is Place.ScriptDir, open since before the first step. A step can move that directory and put a link in its
// place. We are outside of the isolation of the step's processes: by the path we would then write, read and remove
// files that the step cannot reach.
type scriptDir struct {
	path string
	root *os.Root
}

func openScriptDir(place Place) (scriptDir, error) {
	from := place.ScriptDir
	if place.Script != nil {
		from = rmtree.PathOf(place.Script)
	}
	d := scriptDir{path: place.ScriptDir}
	var err error
	d.root, err = os.OpenRoot(from)
	return d, d.explain(err, "")
}

// explain returns err, of making or writing an entry, with the path as the operator of the machine knows it, and with
// a remedy. The paths of root are those of a descriptor.
func (d scriptDir) explain(err error, name string) error {
	if err == nil {
		return nil
	}
	return oserr.Hint(fmt.Errorf("%s: %w", d.join(name), oserr.Bare(err)), d.path)
}

// join returns the path of an entry, for the step.
func (d scriptDir) join(name string) string { return filepath.Join(d.path, name) }

// mkdir makes a directory that only its owner can use.
func (d scriptDir) mkdir(name string) error { return d.explain(d.root.Mkdir(name, 0o700), name) }

// createNew creates a file that does not exist, and that only its owner can read.
func createNew(in *os.Root, name string) (*os.File, error) {
	return in.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// read returns the content of a file that a step has written. It does not open empty files, and most of them are empty.
func (d scriptDir) read(name string) ([]byte, error) {
	if info, err := d.root.Lstat(name); err == nil && info.Mode().IsRegular() && info.Size() == 0 {
		return nil, nil
	}
	return readPlain(d.open(name))
}

// open opens a file that a step has written.
func (d scriptDir) open(name string) (*os.File, error) {
	if fi, err := d.root.Lstat(name); err == nil && fi.Mode()&fs.ModeSymlink != 0 {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ELOOP}
	}
	return d.root.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
}

// write writes text to a new file that only its owner can read. Errors call it label. If the file system was read-only
// when an earlier step ended, the file of that step still exists.
func (d scriptDir) write(name, text, label string) error {
	f, err := createNew(d.root, name)
	if errors.Is(err, fs.ErrExist) {
		if err = d.root.Remove(name); err == nil {
			f, err = createNew(d.root, name)
		}
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", label, d.explain(err, name))
	}
	_, err = f.WriteString(text)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		_ = d.root.Remove(name)
		return fmt.Errorf("write %s: %w", label, d.explain(err, name))
	}
	return nil
}

// remove removes an entry and all below it. If some cannot be removed, they are removed with the directory.
func (d scriptDir) remove(name string) { _ = rmtree.RemoveEntry(d.root, name) }
