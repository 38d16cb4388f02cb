package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/stepmux/stepmux/instance"
)

// defaultInterval is how often a File is checked for changes.
const defaultInterval = time.Second

// Config names the inventory's file.
type Config struct {
	// Path is the file. Required.
	Path string
	// Fallback has the values for keys that the inventory does not set.
	Fallback Fallback
	// Interval is how often Watch checks whether the file has changed. If zero, 1s.
	Interval time.Duration
	// Logger receives a line for each reload and for each failed one. May be nil.
	Logger *slog.Logger
}

// File is an inventory in a file, for instance.Group.Follow. It is safe for concurrent use.
type File struct {
	cfg    Config
	reload chan struct{} // holds at most one request

	mu     sync.Mutex // guards the following
	all    []instance.Instance
	loaded fs.FileInfo // the state of the file that was read last, valid or not; nil if it could not be read
	err    error       // the error of that reading
}

// same reports whether two states are of the same, unchanged file. nil equals nil: no file.
func same(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// Open reads an inventory. ctx bounds the calls of the Resolver.
func Open(ctx context.Context, cfg Config) (*File, error) {
	if cfg.Fallback.Resolver == nil {
		return nil, errors.New("inventory: Fallback.Resolver is nil")
	}
	if cfg.Interval <= 0 {
		cfg.Interval = defaultInterval
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	f := &File{cfg: cfg, reload: make(chan struct{}, 1)}
	var err error
	f.all, f.loaded, err = f.read(ctx)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Instances returns the instances of the last valid reading.
func (f *File) Instances() []instance.Instance {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.all
}

// Err returns the error of the last reading, or nil.
func (f *File) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// Reload makes Watch read the file again even if it has not changed, because files that it names may have. It does
// not wait.
func (f *File) Reload() {
	select {
	case f.reload <- struct{}{}:
	default: // a reload is pending already
	}
}

// Watch is for instance.Group.Follow. It reads the file again when it has changed and then stayed unchanged for one
// interval. A file that it cannot read, or that update refuses, changes nothing: the error is logged, and Err returns
// it.
func (f *File) Watch(ctx context.Context, update func([]instance.Instance) error) error {
	if err := update(f.Instances()); err != nil {
		return err
	}
	look := time.NewTicker(f.cfg.Interval)
	defer look.Stop()
	var seen fs.FileInfo // the state at the previous check
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-f.reload:
			f.load(ctx, update)
			continue
		case <-look.C:
		}
		now, err := os.Stat(f.cfg.Path)
		if err != nil {
			now = nil
			f.note(nil, nil, fmt.Errorf("read inventory: %w", err)) // when the file is back it is read, even if it is unchanged
		} else if same(now, seen) && !f.isLoaded(now) {
			f.load(ctx, update)
		}
		seen = now
	}
}

// load reads the file and passes the instances on.
func (f *File) load(ctx context.Context, update func([]instance.Instance) error) {
	all, info, err := f.read(ctx)
	if ctx.Err() != nil {
		return // the error would come from ctx, not from the file
	}
	if err == nil {
		err = update(all)
	}
	f.note(all, info, err)
}

// note records and logs the outcome of a reading. An error is logged once.
func (f *File) note(all []instance.Instance, info fs.FileInfo, err error) {
	f.mu.Lock()
	known := err != nil && f.err != nil && f.err.Error() == err.Error()
	f.loaded, f.err = info, err
	if err == nil {
		f.all = all
	}
	f.mu.Unlock()
	switch {
	case err == nil:
		f.cfg.Logger.Info("inventory read", "file", f.cfg.Path, "instances", len(all))
	case !known:
		f.cfg.Logger.Error("inventory not read, the one before stays in force", "file", f.cfg.Path, "error", err)
	}
}

func (f *File) isLoaded(info fs.FileInfo) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return same(f.loaded, info)
}

// read reads the file. It also returns the file's state just before; nil if it cannot be read.
func (f *File) read(ctx context.Context) ([]instance.Instance, fs.FileInfo, error) {
	text, info, err := f.text()
	if err != nil {
		return nil, info, fmt.Errorf("read inventory: %w", err)
	}
	all, err := Parse(ctx, f.cfg.Path, filepath.Dir(f.cfg.Path), text, f.cfg.Fallback)
	return all, info, err
}

func (f *File) text() ([]byte, fs.FileInfo, error) {
	info, err := os.Stat(f.cfg.Path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", f.cfg.Path) // opening a pipe would wait for its other end
	}
	if err != nil {
		return nil, nil, err
	}
	file, err := os.Open(f.cfg.Path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxText+1))
	if err != nil {
		return nil, nil, err
	}
	return text, info, nil
}
