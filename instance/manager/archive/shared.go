package archive

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/stepmux/stepmux/internal/contents"
)

// projectsBucket and artifactsBucket are the object stores of a cluster.
const projectsBucket, artifactsBucket = "STEPMUX_PROJECTS", "STEPMUX_ARTIFACTS"

// Shared is the Store of managers that share their state by NATS: archives are in object stores there, which
// all managers read.
type Shared struct {
	Projects, Artifacts *Objects
	// copies has projects that arrive, or that a VM of this manager needed.
	copies *contents.Store
	needed func(context.Context) (map[string]bool, error) // as in Dirs
	keep   time.Duration
	fetch  chan struct{} // held while a project is copied from NATS
}

// OpenShared opens the object stores of a cluster, and directories for copies.
func OpenShared(ctx context.Context, cfg Config, server Server) (*Shared, error) {
	dirs, err := OpenDirs(cfg)
	if err != nil {
		return nil, err
	}
	dirs.projects.Sync = false // NATS has them
	f := &Shared{copies: dirs.projects, needed: cfg.Needed, keep: cfg.Keep, fetch: make(chan struct{}, 1)}
	if f.Projects, err = openObjects(ctx, server, projectsBucket, cfg.Bytes); err != nil {
		return nil, fmt.Errorf("open the store of projects: %w", err)
	}
	if f.Artifacts, err = openObjects(ctx, server, artifactsBucket, cfg.Bytes); err != nil {
		return nil, fmt.Errorf("open the store of artifacts: %w", err)
	}
	return f, nil
}

// HasProject implements Store.
func (f *Shared) HasProject(ctx context.Context, digest string, size int64) (bool, error) {
	return f.Projects.touch(ctx, digest, size)
}

// UseProject implements Store.
func (f *Shared) UseProject(ctx context.Context, digest string, size int64) (bool, error) {
	return f.Projects.touch(ctx, digest, size)
}

// BeginProject implements Store.
func (f *Shared) BeginProject(ctx context.Context, digest string, size int64) (*contents.Upload, error) {
	over, err := f.Projects.over(ctx, size)
	if err == nil && over > 0 {
		err = f.sweepProjects(ctx, size)
	}
	if err != nil {
		return nil, err
	}
	f.copies.Sweep(size, nil)
	return f.copies.Begin(digest, size)
}

// KeepProject implements Store.
func (f *Shared) KeepProject(ctx context.Context, upload *contents.Upload) error {
	kept, err := f.copies.Keep(upload)
	if err != nil {
		return err
	}
	defer kept.Close()
	return f.Projects.Put(ctx, upload.Digest, kept)
}

// OpenProject returns the copy of a project, which it makes if it is missing. A copy always has the content that the
// digest says.
func (f *Shared) OpenProject(ctx context.Context, digest string, size int64) (*os.File, error) {
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
	if err := f.Projects.Read(ctx, digest, upload); err != nil {
		upload.Discard()
		return nil, fmt.Errorf("get it from NATS: %w", err)
	}
	return f.copies.Keep(upload)
}

// PeekProject implements Store.
func (f *Shared) PeekProject(ctx context.Context, digest string, size int64) (*os.File, error) {
	if f.copies.Touch(digest) {
		if file, err := os.Open(filepath.Join(f.copies.Dir, digest)); err == nil {
			return file, nil
		}
	}
	return f.OpenProject(ctx, digest, size)
}

// KeepResult keeps a file, and removes the oldest ones if they are too many: a tenth at once, since that takes a look
// at each of them.
func (f *Shared) KeepResult(ctx context.Context, name string, file *os.File) error {
	if err := f.Artifacts.Put(ctx, name, file); err != nil {
		return err
	}
	if over, err := f.Artifacts.over(ctx, 0); err == nil && over > 0 {
		this := func(context.Context) (map[string]bool, error) { return map[string]bool{name: true}, nil }
		_, _ = f.Artifacts.Sweep(ctx, f.Artifacts.most/10, f.keep, this) // else the next one does it
	}
	return nil
}

// ReadResult implements Store.
func (f *Shared) ReadResult(ctx context.Context, name string, to io.Writer) error {
	return f.Artifacts.Read(ctx, name, to)
}

// ResultSize implements Store.
func (f *Shared) ResultSize(ctx context.Context, name string) (int64, error) {
	info, _, err := f.Artifacts.find(ctx, name)
	if info == nil {
		return 0, err
	}
	return int64(info.Size), nil // it was put
}

// Sweep implements Store.
func (f *Shared) Sweep(ctx context.Context, more int64) error {
	f.copies.Sweep(0, nil)
	if _, err := f.Artifacts.Sweep(ctx, 0, f.keep, nil); err != nil {
		return err
	}
	return f.sweepProjects(ctx, more)
}

func (f *Shared) sweepProjects(ctx context.Context, more int64) error {
	over, err := f.Projects.Sweep(ctx, more, f.keep, f.needed)
	if err != nil {
		return err
	}
	return noRoom(over)
}
