package firstuse

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	fileMode = 0o600
	// openFlags refuse a symbolic link in the place of the file and do not wait for a pipe.
	openFlags = unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
)

// checkFile returns an error if the file cannot be a store or if others could have written it.
func checkFile(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case info.IsDir():
		return errors.New("it is a directory; name a file")
	case !info.Mode().IsRegular():
		return errors.New("it is not a regular file")
	case ok && int(stat.Uid) != os.Getuid() && stat.Uid != 0:
		return fmt.Errorf("it belongs to another user (%d), so its keys prove nothing", stat.Uid)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("others may write to it (mode %04o), so its keys prove nothing: check it, then chmod 600",
			info.Mode().Perm())
	}
	return nil
}

// lock keeps other writers out until unlock is called. It locks a file of its own, because writers replace the store's
// file. The kernel releases the lock when the process ends.
func (s *Store) lock(ctx context.Context) (unlock func(), err error) {
	f, err := os.OpenFile(s.path+".lock", os.O_CREATE|os.O_RDWR|openFlags, fileMode)
	if err != nil {
		return nil, err
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() {
				_ = unix.Flock(int(f.Fd()), unix.LOCK_UN) // at once, even while a child between fork and exec holds a copy
				f.Close()
			}, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("%s: %w (it must be on a file system with flock)", f.Name(), err)
		}
		timer := time.NewTimer(pause) // flock cannot wait with a context
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			f.Close()
			return nil, fmt.Errorf("%s is held by another process: %w", f.Name(), context.Cause(ctx))
		}
	}
}
