package manager

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/stepmux/stepmux/internal/contents"
)

// projectsBucket and artifactsBucket are the object stores of a cluster.
const projectsBucket, artifactsBucket = "STEPMUX_PROJECTS", "STEPMUX_ARTIFACTS"

// sharedFiles is the fileStore of managers that share their state by NATS: archives are in object stores there, which
// all managers read.
type sharedFiles struct {
	projects, artifacts *objects
	// copies has projects that arrive, or that a VM of this manager needed.
	copies *contents.Store
	needed func(context.Context) (map[string]bool, error) // as in dirFiles
	keep   time.Duration
	fetch  chan struct{} // held while a project is copied from NATS
}

func openSharedFiles(ctx context.Context, s *store, cfg *Config, copies *contents.Store) (*sharedFiles, error) {
	f := &sharedFiles{copies: copies, needed: s.queuedProjects, keep: cfg.Keep, fetch: make(chan struct{}, 1)}
	var err error
	if f.projects, err = s.objects(ctx, projectsBucket, cfg.FileBytes); err != nil {
		return nil, fmt.Errorf("open the store of projects: %w", err)
	}
	if f.artifacts, err = s.objects(ctx, artifactsBucket, cfg.FileBytes); err != nil {
		return nil, fmt.Errorf("open the store of artifacts: %w", err)
	}
	return f, nil
}

func (f *sharedFiles) hasProject(ctx context.Context, digest string, size int64) (bool, error) {
	return f.projects.touch(ctx, digest, size)
}

func (f *sharedFiles) useProject(ctx context.Context, digest string, size int64) (bool, error) {
	return f.projects.touch(ctx, digest, size)
}

func (f *sharedFiles) beginProject(ctx context.Context, digest string, size int64) (*contents.Upload, error) {
	over, err := f.projects.over(ctx, size)
	if err == nil && over > 0 {
		err = f.sweepProjects(ctx, size)
	}
	if err != nil {
		return nil, err
	}
	f.copies.Sweep(size, nil)
	return f.copies.Begin(digest, size)
}

func (f *sharedFiles) keepProject(ctx context.Context, upload *contents.Upload) error {
	kept, err := f.copies.Keep(upload)
	if err != nil {
		return err
	}
	defer kept.Close()
	return f.projects.put(ctx, upload.Digest, kept)
}

// openProject returns the copy of a project, which it makes if it is missing. A copy always has the content that the
// digest says.
func (f *sharedFiles) openProject(ctx context.Context, digest string, size int64) (*os.File, error) {
	select {
	case f.fetch <- struct{}{}: // others may need the same one
		defer func() { <-f.fetch }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	kept, err := f.copies.Find(digest, size)
	if kept != nil || err != nil {
		return kept, err
	}
	f.copies.Sweep(size, nil)
	upload, err := f.copies.Begin(digest, size)
	if err != nil {
		return nil, err
	}
	if err := f.projects.read(ctx, digest, upload); err != nil {
		upload.Discard()
		return nil, fmt.Errorf("get it from NATS: %w", err)
	}
	return f.copies.Keep(upload)
}

// keepResult keeps a file, and removes the oldest ones if they are too many: a tenth at once, since that takes a look
// at each of them.
func (f *sharedFiles) keepResult(ctx context.Context, name string, file *os.File) error {
	if err := f.artifacts.put(ctx, name, file); err != nil {
		return err
	}
	if over, err := f.artifacts.over(ctx, 0); err == nil && over > 0 {
		this := func(context.Context) (map[string]bool, error) { return map[string]bool{name: true}, nil }
		_, _ = f.artifacts.sweep(ctx, f.artifacts.most/10, f.keep, this) // else the next one does it
	}
	return nil
}

func (f *sharedFiles) readResult(ctx context.Context, name string, to io.Writer) error {
	return f.artifacts.read(ctx, name, to)
}

func (f *sharedFiles) resultSize(ctx context.Context, name string) (int64, error) {
	info, _, err := f.artifacts.find(ctx, name)
	if info == nil {
		return 0, err
	}
	return int64(info.Size), nil // it was put
}

func (f *sharedFiles) sweep(ctx context.Context, more int64) error {
	f.copies.Sweep(0, nil)
	if _, err := f.artifacts.sweep(ctx, 0, f.keep, nil); err != nil {
		return err
	}
	return f.sweepProjects(ctx, more)
}

func (f *sharedFiles) sweepProjects(ctx context.Context, more int64) error {
	over, err := f.projects.sweep(ctx, more, f.keep, f.needed)
	if err != nil {
		return err
	}
	return noRoom(over)
}
