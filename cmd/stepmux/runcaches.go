package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/stepmux/stepmux/connector/files"
	"github.com/stepmux/stepmux/internal/standalone/whole/carry"
	"github.com/stepmux/stepmux/internal/termtext"
)

// vmCaches keeps the caches of jobs on VMs in a directory of this machine.
type vmCaches struct {
	dir  carry.CacheDir // empty if there is no directory
	keys carry.Elsewhere
}

// of returns the caches of an attempt, as for connector.Job, and a function that closes their files at its end.
func (v *vmCaches) of(a *carry.Attempt) (caches func(context.Context) (files.Caches, error), end func()) {
	if len(a.Caches) == 0 {
		return nil, func() {}
	}
	found := foundCaches{dir: v.dir, say: a.Say, open: map[string]*os.File{}}
	return func(ctx context.Context) (all files.Caches, err error) {
		if err := v.dir.Open(ctx); err != nil {
			a.SayOnce(fmt.Sprintf("caches: there is no directory for them: %v", err))
			return all, nil
		}
		project := func(context.Context) (*os.File, error) { return os.Open(a.Archives[0].Path) }
		kept, err := v.keys.Find(ctx, a, project, found.find)
		if err != nil {
			return all, err
		}
		for _, k := range kept {
			if !k.Found.IsZero() {
				all.Before = append(all.Before, found.project(k))
			}
			if k.IsSaved() {
				all.After = append(all.After, found.cache(k))
			}
		}
		return all, nil
	}, found.close
}

// foundCaches has the open archives of the caches of an attempt. One goroutine uses it at a time; the archives may be
// read at once.
type foundCaches struct {
	dir  carry.CacheDir
	say  func(string)
	open map[string]*os.File // by digest
}

// find finds a cache.
func (f *foundCaches) find(ctx context.Context, key string) (carry.Archive, error) {
	file, found, err := f.dir.Find(ctx, key)
	if file == nil {
		return found, err
	}
	if f.open[found.Digest] != nil {
		return found, file.Close()
	}
	f.open[found.Digest] = file
	return found, nil
}

func (f *foundCaches) close() {
	for _, file := range f.open {
		file.Close()
	}
}

// project returns the archive of a cache for a VM.
func (f *foundCaches) project(k carry.Kept) *files.Project {
	file := f.open[k.Found.Digest]
	return &files.Project{
		Digest: k.Found.Digest, Size: k.Found.Size, Cache: true,
		Open: func(context.Context) (io.ReadSeekCloser, error) {
			return notOwned{io.NewSectionReader(file, 0, k.Found.Size)}, nil
		},
		Unpacked: func(leftOut string) {
			if leftOut != "" {
				f.say(fmt.Sprintf("cache %q is left out: %s", k.From, termtext.Cut(leftOut, maxCacheNote)))
				return
			}
			f.say(fmt.Sprintf("cache %q is restored", k.From))
		},
	}
}

// maxCacheNote bounds the note of a VM about a cache, in bytes.
const maxCacheNote = 500

// cache describes the files that are collected for a cache.
func (f *foundCaches) cache(k carry.Kept) *files.Cache {
	return &files.Cache{
		Artifacts: files.Artifacts{Paths: k.Paths, Keep: true, Dir: string(f.dir)}, Untracked: k.Untracked, When: k.Wanted,
		Has: k.Found.Digest,
		Save: func(_ context.Context, from *os.File, err error) string {
			switch {
			case err == nil:
				err = f.dir.Keep(k.Key, from)
			case errors.Is(err, files.ErrSame) && k.From == k.Key:
				err = nil
			case errors.Is(err, files.ErrSame):
				err = f.dir.Copy(k.Key, f.open[k.Found.Digest], k.Found.Size)
			}
			f.say(carry.Result(k.Key, err))
			return ""
		},
	}
}

// notOwned is a reader of a file that another owner closes.
type notOwned struct{ *io.SectionReader }

// Close does nothing.
func (notOwned) Close() error { return nil }
