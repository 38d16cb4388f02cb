package actionservices

import (
	"context"
	"os"
	"time"
)

// Artifact describes an artifact of the service v4: one file, mostly an archive.
type Artifact struct {
	ID      int64     `json:"id"`
	Name    string    `json:"name"`
	MIME    string    `json:"mime,omitempty"`
	Digest  string    `json:"digest,omitempty"` // as the client gave it; empty if it did not
	Size    int64     `json:"size"`
	Created time.Time `json:"created"`
	// Job, Attempt and Build are those of the Job that made it.
	Job     string `json:"job"`
	Attempt int    `json:"attempt,omitempty"`
	Build   string `json:"build,omitempty"`
	// Content is where the Store has the file.
	Content string `json:"content"`
}

// Cache describes a cache. It never changes.
type Cache struct {
	Key     string    `json:"key"`
	Version string    `json:"version"` // of the paths and the compression, as the client computes it
	Scope   string    `json:"scope"`
	Size    int64     `json:"size"`
	Created time.Time `json:"created"`
	// Content is where the Store has the file.
	Content string `json:"content,omitempty"`
}

// Store keeps the artifacts of runs, and the caches of projects, once their files are complete. It is safe for
// concurrent use. Without [Config.Store], it is directories on this machine.
type Store interface {
	// Scratch returns the directory for files that are not complete: those of caches, or of artifacts.
	Scratch(caches bool) (dir string, err error)
	// Artifacts returns the artifacts of a run, in any order.
	Artifacts(ctx context.Context, run string) ([]Artifact, error)
	// KeepArtifact keeps an artifact with its file, which is in Scratch: after a success, that is the Store's. If there is
	// one of that name, for which replaces returns false, the error is fs.ErrExist.
	KeepArtifact(ctx context.Context, run string, a Artifact, file string, replaces func(*Artifact) bool) error
	// RemoveArtifact removes the artifact with a name, if it is there.
	RemoveArtifact(ctx context.Context, run, name string) error
	// Caches returns the caches of a project, in any order. The files of some may be gone.
	Caches(ctx context.Context, project string) ([]Cache, error)
	// KeepCache is KeepArtifact for a cache, and returns the SHA-256 of the file in hexadecimal. If there is one of that
	// key, version and scope, the error is fs.ErrExist.
	KeepCache(ctx context.Context, project string, c Cache, file string) (sum string, err error)
	// UseCache notes the use of a cache, and reports whether its file is there.
	UseCache(ctx context.Context, project string, c *Cache) (bool, error)
	// Open opens a Content, and returns its SHA-256 in hexadecimal, or "" if it is not known. The caller closes the
	// file. Without it the error is fs.ErrNotExist.
	Open(ctx context.Context, content string) (file *os.File, sum string, err error)
}
