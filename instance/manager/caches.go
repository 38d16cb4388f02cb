package manager

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/stepmux/stepmux/connector/files"
	"github.com/stepmux/stepmux/instance/manager/archive"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/manager/state"
	"github.com/stepmux/stepmux/internal/termtext"
)

// CacheName returns the name in the state of a cache of the pipeline's project.
func (p *PipelineRun) CacheName(key string) string {
	sum := sha256.Sum256([]byte(p.asked.GetRepository() + "\n" + key))
	return hex.EncodeToString(sum[:])
}

// FindCache returns the archive of a cache of the pipeline's project, for a build that is about to be queued. It
// returns nil if the cache does not exist, or is not kept any more.
func (p *PipelineRun) FindCache(ctx context.Context, key string) (found *pb.Archive, err error) {
	err = p.m.store.Persist(ctx, func(ctx context.Context) (err error) {
		found, err = p.m.store.FindCache(ctx, p.CacheName(key))
		return err
	})
	if err != nil || found == nil {
		return nil, err
	}
	kept, err := p.m.files.UseProject(ctx, found.GetDigest(), found.GetSize())
	if err != nil || !kept {
		return nil, err
	}
	return found, nil
}

// OpenArchive opens an archive that builds need. The caller closes it.
func (p *PipelineRun) OpenArchive(ctx context.Context, digest string, size int64) (*os.File, error) {
	return p.m.files.OpenProject(ctx, digest, size)
}

// caches returns the caches that are kept when a build has ended, as for connector.Job.
// The log of a build whose manager ends after that says of each only once that it was saved.
func (m *Manager) caches(b *build) func(context.Context) (files.Caches, error) {
	list := b.asked.GetPipeline().GetCaches()
	if len(list) == 0 {
		return nil
	}
	var all files.Caches
	for _, c := range list {
		all.After = append(all.After, &files.Cache{
			Artifacts: files.Artifacts{
				Paths: c.GetPaths(), Keep: true, Dir: archive.Config{Dir: m.cfg.Dir}.Arrivals(),
				MaxBytes: min(files.DefaultMaxBytes, m.cfg.FileBytes),
			},
			Untracked: c.GetUntracked(),
			When:      func(succeeded bool) bool { return succeeded && c.GetOnSuccess() || !succeeded && c.GetOnFailure() },
			Has:       c.GetHas().GetDigest(),
			Save: func(ctx context.Context, from *os.File, err error) string {
				key := termtext.Cut(c.GetKey(), maxKey)
				if err = m.saveCache(ctx, c, from, err); err != nil {
					return fmt.Sprintf("cache %q is not saved: %v", key, err)
				}
				line := fmt.Sprintf("cache %q is saved", key)
				return m.savedOnce(b, c.GetName(), line) //nolint:contextcheck // as other changes of the record
			},
		})
	}
	return func(context.Context) (files.Caches, error) { return all, nil }
}

// maxKey bounds the key of a cache in a line of a log, in bytes.
const maxKey = 200

// savedOnce returns a line about a cache that a build has saved, or nothing if the build has such a line.
func (m *Manager) savedOnce(b *build, name, line string) string {
	if slices.Contains(b.kept().Saved, name) {
		return ""
	}
	if m.changeRunning(b, func(r *state.Record) { r.Saved = append(slices.Clip(r.Saved), name) }) != nil {
		return "" // this manager ends, or the build
	}
	return line
}

// errCacheGone says that the archive of a cache was removed while its build ran.
var errCacheGone = errors.New("it has not changed, and is not kept any more")

// saveCache keeps the archive of a cache, and then names it. A cache that has not changed is named again.
func (m *Manager) saveCache(ctx context.Context, c *pb.PipelineCache, from *os.File, err error) error {
	is := c.GetHas()
	switch {
	case errors.Is(err, files.ErrSame):
		kept, err := m.files.UseProject(ctx, is.GetDigest(), is.GetSize())
		if err != nil {
			return err
		}
		if !kept {
			return errCacheGone
		}
	case err != nil:
		return err
	default:
		is = &pb.Archive{}
		sum := sha256.New()
		if is.Size, err = io.Copy(sum, from); err != nil {
			return err
		}
		if _, err := from.Seek(0, io.SeekStart); err != nil {
			return err
		}
		is.Digest = hex.EncodeToString(sum.Sum(nil))
		if err := m.keepArchive(ctx, is.GetDigest(), is.GetSize(), from); err != nil {
			return err
		}
	}
	return m.store.Persist(ctx, func(ctx context.Context) error { return m.store.NameCache(ctx, c.GetName(), is) })
}
