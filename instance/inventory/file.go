package inventory

import (
	"context"
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

// defaultInterval is how often a File is looked at.
const defaultInterval = time.Second

// Config says which file is the inventory.
type Config struct {
	// Path is the file. Required.
	Path string
	// Fallback applies where the inventory says nothing.
	Fallback Fallback
	// Interval is how often Watch looks whether the file has changed. If zero, 1s.
	Interval time.Duration
	// Logger gets a line for each reload, and for each that fails. May be nil.
	Logger *slog.Logger
}

// File is an inventory in a file, for instance.Group.Follow. It is safe for concurrent use.
type File struct {
	cfg    Config
	reload chan struct{} // has room for one

	mu     sync.Mutex // guards the following
	all    []instance.Instance
	loaded version // of the file that was read last, well or not
	err    error   // of that
}

// version tells two states of a file apart.
type version struct {
	size  int64
	mtime time.Time
	file  fs.FileInfo
}

func (v version) same(w version) bool {
	return v.size == w.size && v.mtime.Equal(w.mtime) && os.SameFile(v.file, w.file)
}

// Open reads an inventory. ctx bounds the calls of the Resolver.
func Open(ctx context.Context, cfg Config) (*File, error) {
	if cfg.Fallback.Resolver == nil {
		return nil, errFallback
	}
	if cfg.Interval <= 0 {
		cfg.Interval = defaultInterval
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	f := &File{cfg: cfg, reload: make(chan struct{}, 1)}
	all, v, err := f.read(ctx)
	if err != nil {
		return nil, err
	}
	f.all, f.loaded = all, v
	return f, nil
}

// Instances returns the instances as they were read last without a mistake.
func (f *File) Instances() []instance.Instance {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.all
}

// Err returns the error of the last reading of the file, or nil.
func (f *File) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// Reload lets Watch read the file again though it may not have changed: keys it names may have. It does not
// wait.
func (f *File) Reload() {
	select {
	case f.reload <- struct{}{}:
	default: // it is going to anyway
	}
}

// Watch is for instance.Group.Follow. It reads the file again when it has changed and then stood still from
// one look to the next. What it cannot read, or update refuses, changes nothing: it is logged, and Err says
// it.
func (f *File) Watch(ctx context.Context, update func([]instance.Instance) error) error {
	if err := update(f.Instances()); err != nil {
		return err
	}
	look := time.NewTicker(f.cfg.Interval)
	defer look.Stop()
	var seen version // by the look before
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-f.reload:
			f.load(ctx, update)
			continue
		case <-look.C:
		}
		info, err := os.Stat(f.cfg.Path)
		if err != nil {
			seen = version{}
			f.lose(fmt.Errorf("read inventory: %w", err))
			continue
		}
		now := versionOf(info)
		if now.same(seen) && !f.isLoaded(now) {
			f.load(ctx, update)
		}
		seen = now
	}
}

// load reads the file and hands it on.
func (f *File) load(ctx context.Context, update func([]instance.Instance) error) {
	all, v, err := f.read(ctx)
	if ctx.Err() != nil {
		return // what it then says is not the file's fault
	}
	if err == nil {
		err = update(all)
	}
	f.mu.Lock()
	if v.file != nil {
		f.loaded = v
	}
	if err == nil {
		f.all, f.err = all, nil
	}
	f.mu.Unlock()
	if err != nil {
		f.note(err)
		return
	}
	f.cfg.Logger.Info("inventory read", "file", f.cfg.Path, "instances", len(all))
}

// note keeps and logs a mistake, once.
func (f *File) note(err error) {
	f.mu.Lock()
	known := f.err != nil && f.err.Error() == err.Error()
	f.err = err
	f.mu.Unlock()
	if !known {
		f.cfg.Logger.Error("inventory not read, the one before stays in force", "file", f.cfg.Path, "error", err)
	}
}

// lose notes that the file is not there. When it is again it is read, the same or not.
func (f *File) lose(err error) {
	f.mu.Lock()
	f.loaded = version{}
	f.mu.Unlock()
	f.note(err)
}

func (f *File) isLoaded(v version) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.loaded.same(v)
}

func versionOf(info fs.FileInfo) version {
	return version{size: info.Size(), mtime: info.ModTime(), file: info}
}

// read reads the file as it is now.
func (f *File) read(ctx context.Context) ([]instance.Instance, version, error) {
	info, err := os.Stat(f.cfg.Path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", f.cfg.Path) // to open a pipe would wait for its other end
	}
	if err != nil {
		return nil, version{}, fmt.Errorf("read inventory: %w", err)
	}
	file, err := os.Open(f.cfg.Path)
	if err != nil {
		return nil, versionOf(info), fmt.Errorf("read inventory: %w", err)
	}
	defer file.Close()
	if info, err = file.Stat(); err != nil {
		return nil, version{}, fmt.Errorf("read inventory: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxText+1))
	if err != nil {
		return nil, versionOf(info), fmt.Errorf("read inventory: %w", err)
	}
	all, err := Parse(ctx, f.cfg.Path, filepath.Dir(f.cfg.Path), text, f.cfg.Fallback)
	return all, versionOf(info), err
}
