package jobcache

import (
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// keepUnused is how long a cache is kept that no job saves or restores.
const keepUnused = 30 * 24 * time.Hour

// use records a use of the cache with this archive: the time of its directory.
func use(file string) {
	now := time.Now()
	_ = os.Chtimes(filepath.Dir(file), now, now) // a cache that is not there has none
}

// sweep removes the caches in dir, as PROJECT/CACHE, that have not been used for keepUnused. It ignores errors, because
// another job may do the same. A job may have put links there: none is followed out of dir.
func sweep(dir string) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return
	}
	defer root.Close()
	projects, _ := fs.ReadDir(root.FS(), ".")
	for _, p := range projects {
		project, err := root.OpenRoot(p.Name())
		if err != nil {
			continue
		}
		caches, _ := fs.ReadDir(project.FS(), ".")
		for _, c := range caches {
			if info, err := c.Info(); err == nil && time.Since(info.ModTime()) > keepUnused {
				_ = project.RemoveAll(c.Name())
			}
		}
		project.Close()
	}
}
