package manager

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

const (
	// projectsDir and artifactsDir are the directories of archives in the state directory.
	projectsDir, artifactsDir = "projects", "artifacts"
	artifactsSuffix           = ".tar.zst"
	traceSuffix               = ".trace.json"
)

// traceOf returns the name of the trace of a build in a fileStore.
func traceOf(id string) string { return id + traceSuffix }

// fileStore has the archives of the projects of builds that wait or run, by their SHA-256, and what builds that have
// ended have left: their artifacts, by the build's ID, and their traces, by traceOf it. It is safe for concurrent use.
type fileStore interface {
	// hasProject reports whether a project is there, and notes its use.
	hasProject(ctx context.Context, digest string, size int64) (bool, error)
	// beginProject makes room for a project that is about to arrive. The caller discards it, or gives it to keepProject,
	// after which it is on disk.
	beginProject(ctx context.Context, digest string, size int64) (*contents.Upload, error)
	keepProject(ctx context.Context, upload *contents.Upload) error
	// useProject keeps a project for a request that is about to be queued, and reports whether it is there.
	useProject(ctx context.Context, digest string, size int64) (bool, error)
	// openProject opens a project. The caller closes it.
	openProject(ctx context.Context, digest string, size int64) (*os.File, error)
	// keepResult keeps the artifacts or the trace of a build. It may give the file another name.
	keepResult(ctx context.Context, name string, file *os.File) error
	// readResult writes artifacts or a trace to a Writer. Without them the error wraps fs.ErrNotExist.
	readResult(ctx context.Context, name string, to io.Writer) error
	// resultSize returns the length of artifacts or of a trace, 0 if they are not kept.
	resultSize(ctx context.Context, name string) (int64, error)
	// sweep removes files that are too old, and projects that no build needs until there is room for so many bytes more.
	sweep(ctx context.Context, more int64) error
}

// dirFiles is the fileStore of a manager that shares nothing: directories of its own.
type dirFiles struct {
	projects  *contents.Store
	artifacts *contents.Store // and traces, by build; their names are no digests
	// needed returns the projects that the queue needs.
	needed func(context.Context) (map[string]bool, error)

	mu sync.Mutex // guards the following, and removals from projects
	// recent and earlier have the projects of requests since the queue was looked through the last time, and the time
	// before. A request may be in neither list of the queue, but then it is here.
	recent, earlier map[string]bool
}

// openDirs opens directories for files in the state directory. With sync, a project is on disk once it is kept.
func openDirs(s *store, cfg *Config, sync bool) (*dirFiles, error) {
	f := &dirFiles{
		projects: &contents.Store{
			Dir: filepath.Join(cfg.Dir, projectsDir), Bytes: cfg.FileBytes, Age: cfg.Keep, Sync: sync,
		},
		artifacts: &contents.Store{Dir: filepath.Join(cfg.Dir, artifactsDir), Bytes: cfg.FileBytes, Age: cfg.Keep},
		needed:    s.queuedProjects, recent: map[string]bool{},
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

func (f *dirFiles) hasProject(_ context.Context, digest string, size int64) (bool, error) {
	kept, err := f.projects.Find(digest, size)
	if kept == nil {
		return false, err
	}
	return true, kept.Close()
}

func (f *dirFiles) beginProject(ctx context.Context, digest string, size int64) (*contents.Upload, error) {
	if f.projects.Sweep(size, func(string) bool { return true }) > 0 { // there is no room
		if err := f.sweepProjects(ctx, size); err != nil {
			return nil, err
		}
	}
	return f.projects.Begin(digest, size)
}

func (f *dirFiles) keepProject(_ context.Context, upload *contents.Upload) error {
	kept, err := f.projects.Keep(upload)
	if err != nil {
		return err
	}
	return kept.Close()
}

func (f *dirFiles) useProject(_ context.Context, digest string, _ int64) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	kept := f.projects.Touch(digest)
	if kept { // a caller can name any digests
		f.recent[digest] = true
	}
	return kept, nil
}

func (f *dirFiles) openProject(_ context.Context, digest string, _ int64) (*os.File, error) {
	return os.Open(filepath.Join(f.projects.Dir, digest))
}

func (f *dirFiles) keepResult(_ context.Context, name string, file *os.File) error {
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
	own := strings.TrimSuffix(name, traceSuffix) + "." // files of the same build
	f.artifacts.Sweep(0, func(name string) bool { return strings.HasPrefix(name, own) || arrives(name) })
	return nil
}

// arrives reports whether a file among the artifacts is not complete yet. Its build removes it if it is not kept.
func arrives(name string) bool { return strings.HasPrefix(name, ".") }

func (f *dirFiles) resultFile(name string) string {
	if !strings.HasSuffix(name, traceSuffix) {
		name += artifactsSuffix
	}
	return filepath.Join(f.artifacts.Dir, name)
}

func (f *dirFiles) readResult(_ context.Context, name string, to io.Writer) error {
	file, err := os.Open(f.resultFile(name))
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{file}, make([]byte, filePiece))
	return err
}

func (f *dirFiles) resultSize(_ context.Context, name string) (int64, error) {
	info, err := os.Stat(f.resultFile(name))
	if err != nil {
		return 0, nil //nolint:nilerr // it is of no use then
	}
	return info.Size(), nil
}

func (f *dirFiles) sweep(ctx context.Context, more int64) error {
	f.artifacts.Sweep(0, arrives)
	return f.sweepProjects(ctx, more)
}

func (f *dirFiles) sweepProjects(ctx context.Context, more int64) error {
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
