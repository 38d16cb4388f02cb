package project

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/contents"
	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/wire"
)

const (
	// keepBytes bounds the archives on a VM, and keepTime how long an unused archive is kept.
	keepBytes = 10 << 30
	keepTime  = 7 * 24 * time.Hour
)

// store returns the store in CacheDir, which builds share, or one in the directory of the build.
func (p *Project) store() (_ *contents.Store, shared bool, err error) {
	dir, shared := p.cfg.CacheDir, true
	if dir == "" || !private(dir) {
		shared = false
		dir = filepath.Join(p.cfg.Dir, "archives")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, false, oserr.Hint(err, p.cfg.Dir)
		}
	}
	return &contents.Store{Dir: dir, Bytes: keepBytes, Age: keepTime}, shared, nil
}

// Shared returns the store of the archives that builds share, or nil if there is no such store, as in a container that
// ends with its build.
func (p *Project) Shared() *contents.Store {
	store, shared, err := p.store()
	if err != nil || !shared || ends(store.Dir) {
		return nil
	}
	return store
}

// ends reports whether a directory is one of the container in which the build runs, and not of a volume.
func ends(dir string) bool {
	program, err := os.Executable()
	if err != nil || !strings.HasPrefix(program, wire.ContainerHome+"/") {
		return false
	}
	var at, root unix.Stat_t
	return unix.Stat(dir, &at) == nil && unix.Stat("/", &root) == nil && at.Dev == root.Dev
}

// private makes a directory if it is missing, and reports whether only this user can use it.
func private(dir string) bool {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false
	}
	var own, above unix.Stat_t
	return unix.Lstat(dir, &own) == nil && unix.Lstat(filepath.Dir(dir), &above) == nil &&
		own.Mode&unix.S_IFMT == unix.S_IFDIR && own.Mode&0o077 == 0 && int(own.Uid) == os.Geteuid() &&
		int(above.Uid) == os.Geteuid() && above.Mode&0o022 == 0 && unix.Access(dir, unix.W_OK) == nil
}
