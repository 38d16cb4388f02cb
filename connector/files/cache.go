package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// Caches are the caches of a build.
type Caches struct {
	// Before are archives that are unpacked after the project, and before the files of other jobs.
	Before []*Project
	// After are collected after the artifacts, one after the other.
	After []*Cache
}

// Cache selects files of a build that are collected at its end for later builds. A cache that cannot be collected is no
// failure of the build.
type Cache struct {
	// Artifacts are the files. Links that lead out are among them. Take is not called: Save is.
	Artifacts
	// Untracked adds all files that are not files of the Project.
	Untracked bool
	// When reports whether the cache is collected after a job that succeeded, or that failed. A job that was cancelled or
	// timed out has no caches. If nil, it is collected after both.
	When func(succeeded bool) bool
	// Has is the digest of an archive that is the cache already, if nothing has changed. It may be empty.
	Has string
	// Save is called at the end with the archive, which is untrusted, or with the reason for its lack: [ErrNoFiles],
	// [ErrSame] or a failure. It may rename the file; otherwise the file is removed afterwards. The line that it returns,
	// if any, is for the log of the job.
	Save func(ctx context.Context, archive *os.File, err error) (line string)
}

var (
	// ErrNoFiles says that a cache has no archive because no file matches.
	ErrNoFiles = errors.New("no file matches")
	// ErrSame says that a cache has no new archive because that would be the one of [Cache.Has].
	ErrSame = errors.New("nothing has changed")
)

// Collect returns an empty Collection for the cache. The caller calls Close.
func (c *Cache) Collect() *Collection {
	to := c.Artifacts.Collect()
	to.isCache, to.untracked, to.has = true, c.Untracked, c.Has
	return to
}

// End calls Save, for a Collection of the cache that was received, or failed with err.
func (c *Cache) End(ctx context.Context, from *Collection, err error) (line string) {
	switch {
	case err != nil:
	case from.same:
		err = ErrSame
	case from.file == nil:
		err = ErrNoFiles
	default:
		if _, err = from.file.Seek(0, io.SeekStart); err == nil {
			return c.Save(ctx, from.file, nil)
		}
		err = fmt.Errorf("read the archive: %w", err)
	}
	return c.Save(ctx, nil, err)
}
