package archive

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/internal/contents"
)

// Dirs is the Store of a manager that shares nothing: directories of its own.
type Dirs struct {
	projects  *contents.Store
	artifacts *contents.Store // and traces, by build; their names are no digests
	// needed returns the projects that the queue needs.
	needed func(context.Context) (map[string]bool, error)

	mu sync.Mutex // guards the following, and removals from projects
	// recent and earlier have the projects of requests since the queue was looked through the last time, and the time
	// before. A request may be in neither list of the queue, but then it is here.
	recent, earlier map[string]bool
}

// OpenDirs opens directories for files in the state directory.
func OpenDirs(cfg Config) (*Dirs, error) {
	f := &Dirs{
		projects: &contents.Store{
			Dir: filepath.Join(cfg.Dir, projectsDir), Bytes: cfg.Bytes, Age: cfg.Keep, Sync: true,
		},
		artifacts: &contents.Store{Dir: cfg.Arrivals(), Bytes: cfg.Bytes, Age: cfg.Keep},
		needed:    cfg.Needed, recent: map[string]bool{},
	}
	for _, dir := range []string{f.projects.Dir, f.artifacts.Dir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		parts, err := filepath.Glob(filepath.Join(dir, ".*")) // of a manager that was killed
		if err != nil {
			return nil, err
		}
		for _, part := range parts {
			_ = os.Remove(part) // it takes room only
		}
	}
	return f, nil
}

// HasProject implements Store.
func (f *Dirs) HasProject(_ context.Context, digest string, size int64) (bool, error) {
	kept, err := f.projects.Find(digest, size)
	if kept == nil {
		return false, err
	}
	return true, kept.Close()
}

// BeginProject implements Store.
func (f *Dirs) BeginProject(ctx context.Context, digest string, size int64) (*contents.Upload, error) {
	if f.projects.Sweep(size, func(string) bool { return true }) > 0 { // there is no room
		if err := f.sweepProjects(ctx, size); err != nil {
			return nil, err
		}
	}
	return f.projects.Begin(digest, size)
}

// KeepProject implements Store.
func (f *Dirs) KeepProject(_ context.Context, upload *contents.Upload) error {
	kept, err := f.projects.Keep(upload)
	if err != nil {
		return err
	}
	return kept.Close()
}

// Recent returns how many projects are kept for requests that may not be in the queue yet.
func (f *Dirs) Recent() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.recent)
}

// UseProject implements Store.
func (f *Dirs) UseProject(_ context.Context, digest string, _ int64) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	kept := f.projects.Touch(digest)
	if kept { // a caller can name any digests
		f.recent[digest] = true
	}
	return kept, nil
}

// OpenProject implements Store.
func (f *Dirs) OpenProject(_ context.Context, digest string, _ int64) (*os.File, error) {
	return os.Open(filepath.Join(f.projects.Dir, digest))
}

// PeekProject implements Store.
func (f *Dirs) PeekProject(ctx context.Context, digest string, size int64) (*os.File, error) {
	return f.OpenProject(ctx, digest, size)
}

// KeepResult implements Store.
func (f *Dirs) KeepResult(_ context.Context, name string, file *os.File) error {
	if err := file.Sync(); err != nil {
		return err
	}
	path := f.resultFile(name)
	if err := os.Rename(file.Name(), path); err != nil {
		return err
	}
	if err := contents.SyncDir(f.artifacts.Dir); err != nil { // the record of the build tells of it
		return err
	}
	own := strings.TrimSuffix(strings.TrimSuffix(name, traceSuffix), remarksSuffix) + "." // files of the same build
	f.artifacts.Sweep(0, func(name string) bool { return strings.HasPrefix(name, own) || arrives(name) })
	return nil
}

// arrives reports whether a file among the artifacts is not complete yet. Its build removes it if it is not kept.
func arrives(name string) bool { return strings.HasPrefix(name, ".") }

func (f *Dirs) resultFile(name string) string {
	if !strings.HasSuffix(name, traceSuffix) && !strings.HasSuffix(name, remarksSuffix) {
		name += artifactsSuffix
	}
	return filepath.Join(f.artifacts.Dir, name)
}

// ReadResult implements Store.
func (f *Dirs) ReadResult(_ context.Context, name string, to io.Writer) error {
	file, err := os.Open(f.resultFile(name))
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{file}, make([]byte, Piece))
	return err
}

// ResultSize implements Store.
func (f *Dirs) ResultSize(_ context.Context, name string) (int64, error) {
	info, err := os.Stat(f.resultFile(name))
	if err != nil {
		return 0, nil //nolint:nilerr // it is of no use then
	}
	return info.Size(), nil
}

// Sweep implements Store.
func (f *Dirs) Sweep(ctx context.Context, more int64) error {
	f.artifacts.Sweep(0, arrives)
	return f.sweepProjects(ctx, more)
}

func (f *Dirs) sweepProjects(ctx context.Context, more int64) error {
	if entries, err := os.ReadDir(f.projects.Dir); err != nil || len(entries) == 0 {
		return err
	}
	f.mu.Lock()
	f.recent, f.earlier = map[string]bool{}, f.recent
	f.mu.Unlock()
	needed, err := f.needed(ctx)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.Copy(needed, f.recent)
	maps.Copy(needed, f.earlier)
	return noRoom(f.projects.Sweep(more, func(digest string) bool { return needed[digest] }))
}

// noRoom returns an error unless over, the bytes of projects that there are too many, is 0.
func noRoom(over int64) error {
	if over <= 0 {
		return nil
	}
	return status.Error(codes.ResourceExhausted, fmt.Sprintf("the projects of builds that wait or run take all the room "+
		"that the manager has for them: %d bytes too few", over))
}
