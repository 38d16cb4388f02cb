// Package archive keeps the files of a manager's builds: the archives of projects that builds need, by their SHA-256,
// and the artifacts and traces of builds that have ended, by the build's ID.
//
// A [Store] has them: [Dirs] in the state directory of one manager, [Shared] in the NATS cluster of several, in
// [Objects]. The caller calls Sweep from time to time. Nothing here has a goroutine or is to be closed.
package archive

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/stepmux/stepmux/internal/contents"
)

const (
	// Piece is the size of the pieces in which an archive is written.
	Piece = 256 << 10
	// projectsDir and artifactsDir are the directories of archives in the state directory.
	projectsDir, artifactsDir = "projects", "artifacts"
	artifactsSuffix           = ".tar.zst"
	traceSuffix               = ".trace.json"
	remarksSuffix             = ".remarks.json"
)

// Trace returns the name of the trace of a build in a Store.
func Trace(id string) string { return id + traceSuffix }

// Remarks returns the name of the annotations and the summary of a build in a Store.
func Remarks(id string) string { return id + remarksSuffix }

// Store has the archives of the projects of builds that wait or run, by their SHA-256. Of builds that have ended it has
// results: the artifacts, by the build's ID, and others, by Trace and Remarks of the ID. It is safe for concurrent use.
type Store interface {
	// HasProject reports whether a project is there, and notes its use.
	HasProject(ctx context.Context, digest string, size int64) (bool, error)
	// BeginProject makes room for a project that is about to arrive. The caller discards it, or gives it to KeepProject,
	// after which it is on disk.
	BeginProject(ctx context.Context, digest string, size int64) (*contents.Upload, error)
	KeepProject(ctx context.Context, upload *contents.Upload) error
	// UseProject keeps a project for a request that is about to be queued, and reports whether it is there.
	UseProject(ctx context.Context, digest string, size int64) (bool, error)
	// OpenProject opens a project. The caller closes it.
	OpenProject(ctx context.Context, digest string, size int64) (*os.File, error)
	// PeekProject is OpenProject for parts of a project that was opened before: a copy is not compared with the digest
	// again.
	PeekProject(ctx context.Context, digest string, size int64) (*os.File, error)
	// KeepResult keeps a result of a build. It may give the file another name.
	KeepResult(ctx context.Context, name string, file *os.File) error
	// ReadResult writes a result to a Writer. Without it the error wraps fs.ErrNotExist.
	ReadResult(ctx context.Context, name string, to io.Writer) error
	// ResultSize returns the length of a result, 0 if it is not kept.
	ResultSize(ctx context.Context, name string) (int64, error)
	// Sweep removes files that are too old, and projects that no build needs until there is room for so many bytes more.
	Sweep(ctx context.Context, more int64) error
}

// Config describes a Store. All fields are required.
type Config struct {
	// Dir is the state directory of the manager.
	Dir string
	// Bytes bounds the archives of all projects, and those of all artifacts.
	Bytes int64
	// Keep is how long files are kept after their last use.
	Keep time.Duration
	// Needed returns the projects that the queue needs.
	Needed func(context.Context) (map[string]bool, error)
}

// Arrivals returns the directory in which artifacts and traces arrive, before they are kept.
func (cfg Config) Arrivals() string { return filepath.Join(cfg.Dir, artifactsDir) }

// Server is a NATS cluster. All fields are required.
type Server struct {
	JS jetstream.JetStream
	// Stream opens a stream, which is made if it is missing.
	Stream func(ctx context.Context, cfg jetstream.StreamConfig) (jetstream.Stream, error)
	// Persist calls do again while the cluster does not answer.
	Persist func(ctx context.Context, do func(ctx context.Context) error) error
	// Timeout bounds a call, and MaxPiece a message, in bytes.
	Timeout  time.Duration
	MaxPiece int
}
