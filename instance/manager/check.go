package manager

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/instance/manager/claims"
	"github.com/stepmux/stepmux/instance/manager/seal"
)

// Check returns why Open would refuse a configuration, as far as that shows without the state and the cluster: it opens
// neither, and makes nothing. Another Manager may use the directory.
func Check(cfg Config) error {
	if err := cfg.check(); err != nil {
		return err
	}
	err := checkDir(cfg.Dir)
	if err == nil {
		err = seal.CheckKey(cfg.KeyFile, cfg.Dir)
	}
	if err == nil && cfg.NATS != nil {
		if err = claims.CheckID(cfg.Dir); err == nil {
			err = cfg.NATS.Check()
		}
	}
	if err != nil {
		return fmt.Errorf("state directory %s: %w", cfg.Dir, err)
	}
	return nil
}

// checkDir returns why a directory cannot be made or used.
func checkDir(dir string) error {
	at := filepath.Clean(dir)
	info, err := os.Stat(at)
	for errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at) {
		if _, err := os.Lstat(at); err == nil {
			return fmt.Errorf("%s is a symbolic link to nothing", at)
		}
		at = filepath.Dir(at)
		info, err = os.Stat(at)
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return &fs.PathError{Op: "mkdir", Path: at, Err: syscall.ENOTDIR}
	}
	if err := unix.Access(at, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("write to %s: %w", at, err)
	}
	return nil
}
