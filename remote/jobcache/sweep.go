package jobcache

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/rmtree"
)

// keepUnused is how long a cache is kept that no job saves or restores.
const keepUnused = 30 * 24 * time.Hour

// keepPart is how long a file is kept whose writer was killed. No save takes so long.
const keepPart = 24 * time.Hour

// use records a use of the cache with this archive: the time of its directory.
func use(file string) {
	now := time.Now()
	_ = os.Chtimes(filepath.Dir(file), now, now) // a cache that is not there has none
}

// Sweep removes the caches in dir, as PROJECT/CACHE, that have not been used for keepUnused, the directories of
// projects that have been empty for so long, and files of saves that were killed. It stops when ctx ends. It ignores
// errors, because another job may do the same. A job may have put links and pipes there, or a link in place of dir.
// Sweep follows no link: the job that saves may have files that the other job cannot reach.
func Sweep(ctx context.Context, dir string) {
	older := func(in *os.Root, name string, age time.Duration) bool {
		info, err := in.Lstat(name)
		return err == nil && ctx.Err() == nil && time.Since(info.ModTime()) > age
	}
	part := func(in *os.Root, name string) {
		if strings.HasPrefix(name, ".") && older(in, name, keepPart) {
			_ = in.Remove(name) // fails for a cache, which is a directory with files
		}
	}
	each(dir, func(caches *os.Root, project string) {
		path := filepath.Join(caches.Name(), project)
		each(path, func(in *os.Root, cache string) {
			part(in, cache)
			each(filepath.Join(path, cache), part)
			scratch := "~" + rand.Text() // another job may save the cache in between
			if older(in, cache, keepUnused) && in.Rename(cache, scratch) == nil {
				_ = rmtree.RemoveIn(ctx, in, scratch)
			}
		})
		if older(caches, project, keepUnused) {
			_ = unix.Rmdir(path) // fails if it has caches, or is no directory
		}
	})
}

// each calls do with the names in the directory at path, if that is neither a symbolic link nor a pipe, which would
// block an open.
func each(path string, do func(in *os.Root, name string)) {
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer dir.Close()
	root, err := os.OpenRoot(rmtree.PathOf(dir))
	if err != nil {
		return
	}
	defer root.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		do(root, name)
	}
}
