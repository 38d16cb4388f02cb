package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// definitionFiles are the names of files that define a step. The first one is preferred.
var definitionFiles = []string{"func.yml", "step.yml"}

// maxCached bounds the texts whose definitions are kept, in bytes.
const maxCached = 16 << 20

// loader reads the files of steps. A file is compiled again only if its text has changed.
type loader struct {
	tolerant bool // see Config.Tolerant
	files    map[string]cached
	size     int
}

type cached struct {
	text     []byte
	def      *pb.Definition
	warnings []string
	err      error
}

// load finds the step that ref, in f, refers to.
func (r *Runner) load(ctx context.Context, f *frame, ref *pb.Reference) (Found, error) {
	switch ref.GetProtocol() {
	case pb.Reference_local:
		dir, err := f.locate(ref.GetPath())
		if err != nil {
			return Found{}, fmt.Errorf("find step %s: %w", lang.Describe(ref), err)
		}
		return r.find(dir, ref.GetFile(), f.root, lang.Describe(ref))
	case pb.Reference_builtin:
		def, err := lang.Builtin(ref.GetPath())
		return Found{Definition: def, Builtin: ref.GetPath()}, err
	default:
		return r.fetch(ctx, f, ref)
	}
}

// locate returns the absolute path of a local path that stands in f.
func (f *frame) locate(path string) (string, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(f.dir, path)
	}
	if f.root != "" {
		if err := within(f.root, path); err != nil {
			return "", err
		}
	}
	return filepath.Clean(path), nil
}

// within checks that dir is root or below it, with symbolic links followed.
func within(root, dir string) error {
	real, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		real, err = filepath.Clean(dir), nil
	}
	if err != nil {
		return err
	}
	realRoot, err := filepath.EvalSymlinks(root)
	if err != nil {
		return err
	}
	for _, base := range []string{root, realRoot} {
		if rel, err := filepath.Rel(base, real); err == nil && filepath.IsLocal(rel) {
			return nil
		}
	}
	return errors.New("the step's path is outside of the fetched component, and a fetched step cannot refer to that")
}

// find reads the definition in dir: from file or, if file is empty, from the first of definitionFiles that exists.
// Errors call the step name.
func (r *Runner) find(dir, file, root, name string) (Found, error) {
	candidates := []string{file}
	if file == "" {
		candidates = definitionFiles
	}
	for _, candidate := range candidates {
		path := filepath.Join(dir, candidate)
		open := r.cfg.Open
		if root != "" { // it is fetched, so no step has changed it
			open = os.OpenFile
		}
		text, err := readFile(open, path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return Found{}, fmt.Errorf("read step %s: %w", name, err)
		}
		shown := name
		if file == "" {
			shown = strings.TrimPrefix(strings.TrimSuffix(name, "/")+"/"+candidate, "./")
		}
		c := r.loader.compile(path, shown, text)
		return Found{
			Definition: c.def, Dir: dir, Root: root, File: candidate, Text: text, warnings: c.warnings,
			places: lang.NewLocator(shown, text),
		}, c.err
	}
	if file == "" {
		return Found{}, fmt.Errorf("find step %s: it has neither func.yml nor step.yml: %w", name, fs.ErrNotExist)
	}
	return Found{}, fmt.Errorf("find step %s: %w", name, fs.ErrNotExist)
}

// readFile reads the text of a definition.
func readFile(open func(string, int, fs.FileMode) (*os.File, error), path string) ([]byte, error) {
	file, err := open(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a FIFO must not block
	if errors.Is(err, syscall.ENOTDIR) {
		return nil, fs.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", filepath.Base(path))
	}
	return io.ReadAll(io.LimitReader(file, lang.MaxText+1))
}

// compile compiles text, the content of path. Errors call it name.
func (l *loader) compile(path, name string, text []byte) cached {
	if c, ok := l.files[path]; ok && bytes.Equal(c.text, text) {
		return c
	}
	c := cached{text: text}
	if l.tolerant {
		var warnings []*lang.Error
		c.def, warnings, c.err = lang.ParseStepTolerant(name, text)
		for _, w := range warnings {
			c.warnings = append(c.warnings, w.Error())
		}
	} else {
		c.def, c.err = lang.ParseStep(name, text)
	}
	if l.files == nil || l.size+len(text) > maxCached {
		l.files, l.size = map[string]cached{}, 0
	}
	l.files[path] = c
	l.size += len(text)
	return c
}
