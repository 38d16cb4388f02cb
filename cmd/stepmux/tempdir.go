package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/stepmux/stepmux/internal/filelock"
	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/socketdir"
)

const (
	// tempPrefix begins the name of each tempDir, and tempMark is the name of a file in it.
	tempPrefix, tempMark = "stepmux-", ".in-use"
	// maxTempSweep bounds how many names of the system's directory for temporary files one program looks at, and
	// tempSweepTime the time in which it removes those of killed programs. The next program removes the rest.
	maxTempSweep, tempSweepTime = 10_000, 5 * time.Second
)

// tempDir is a directory for temporary files of this program. If the program is killed, the next one of the same user
// removes the directory: its mark is a file that is locked as long as its program lives.
type tempDir struct {
	path string
	mark *os.File
}

// makeTempDir makes an empty directory whose name begins with tempPrefix and kind, and removes those of killed
// programs. The caller calls remove.
func makeTempDir(ctx context.Context, kind string) (*tempDir, error) {
	sweepTempDirs(ctx, os.TempDir())
	path, err := os.MkdirTemp("", tempPrefix+kind)
	if err != nil {
		return nil, err
	}
	d := &tempDir{path: path}
	// Only a locked file gets the name, so that no other program takes the directory for one of a killed program.
	unmarked := filepath.Join(path, tempMark+"-")
	if d.mark, err = os.OpenFile(unmarked, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
		if err = filelock.Try(d.mark); err == nil {
			err = os.Rename(unmarked, filepath.Join(path, tempMark))
		}
	}
	if err != nil {
		return nil, errors.Join(err, d.remove())
	}
	return d, nil
}

// remove removes the directory with everything in it.
func (d *tempDir) remove() error {
	err := rmtree.Remove(d.path)
	if d.mark != nil {
		filelock.Release(d.mark)
	}
	return err
}

// sweepTempDirs removes the directories in tmp that killed programs of our user have left. It keeps those in which a
// step runner still lingers. It passes over errors: they are no matter of this program's work.
func sweepTempDirs(ctx context.Context, tmp string) {
	ctx, cancel := context.WithTimeout(ctx, tempSweepTime)
	defer cancel()
	list, err := os.Open(tmp)
	if err != nil {
		return
	}
	defer list.Close()
	names, _ := list.Readdirnames(maxTempSweep) // with an error it returns the names before it
	for _, name := range names {
		if ctx.Err() == nil && strings.HasPrefix(name, tempPrefix) {
			sweepTempDir(ctx, filepath.Join(tmp, name))
		}
	}
}

// sweepTempDir removes the directory if it is of a killed program.
func sweepTempDir(ctx context.Context, path string) {
	dir, err := os.Lstat(path)
	if err != nil || !dir.IsDir() || int(dir.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
		return
	}
	file := filepath.Join(path, tempMark)
	if fi, err := os.Lstat(file); err != nil || !fi.Mode().IsRegular() {
		return
	}
	mark, err := filelock.Claim(file)
	if err != nil {
		return // its program lives
	}
	defer filelock.Release(mark)
	_ = socketdir.Sweep(ctx, path) // directories that it cannot remove stay, and are found below
	if builds, err := filepath.Glob(filepath.Join(path, wire.SocketBase+"*", "*")); err != nil || len(builds) > 0 {
		return
	}
	_ = rmtree.Remove(path) // the next program tries again
}
