package manager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/connector/files"
	"github.com/stepmux/stepmux/instance"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/contents"
)

const (
	// maxProject bounds the archive of a project, in bytes, and filePiece is the size of the pieces of an archive.
	maxProject, filePiece = 16 << 30, 256 << 10
	// sweepPause is the time between two looks for files that are too old.
	sweepPause = time.Hour

	artifactsSuffix = ".tar.zst"

	// maxPatterns and maxPatternBytes bound the patterns of a build's artifacts.
	maxPatterns, maxPatternBytes = 1000, 64 << 10
)

// fileStore has the archives of the projects of builds that wait or run, and the artifacts of builds that have ended.
type fileStore struct {
	projects  *contents.Store
	artifacts *contents.Store // by build; their names are no digests

	mu sync.Mutex // guards the following, and removals from projects
	// recent and earlier have the projects of requests since the queue was looked through the last time, and the time
	// before. A request may be in neither list of the queue, but then it is here.
	recent, earlier map[string]bool
}

func openFiles(dir string, most int64, keep time.Duration) (*fileStore, error) {
	f := &fileStore{
		projects:  &contents.Store{Dir: filepath.Join(dir, "projects"), Bytes: most, Age: keep, Sync: true},
		artifacts: &contents.Store{Dir: filepath.Join(dir, "artifacts"), Bytes: most, Age: keep},
		recent:    map[string]bool{},
	}
	for _, dir := range []string{f.projects.Dir, f.artifacts.Dir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	parts, err := filepath.Glob(filepath.Join(f.artifacts.Dir, ".*")) // of a manager that was killed
	for _, part := range parts {
		_ = os.Remove(part) // it takes room only
	}
	return f, err
}

// use keeps a project for a request that is about to be queued, and reports whether it is there.
func (f *fileStore) use(digest string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recent[digest] = true
	return f.projects.Touch(digest)
}

// sweepProjects removes the projects that no build needs, until there is room for so many bytes more.
func (m *Manager) sweepProjects(ctx context.Context, more int64) error {
	f := m.files
	if entries, err := os.ReadDir(f.projects.Dir); err != nil || len(entries) == 0 {
		return err
	}
	f.mu.Lock()
	f.recent, f.earlier = map[string]bool{}, f.recent
	f.mu.Unlock()
	needed, err := m.store.queuedProjects(ctx)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.Copy(needed, f.recent)
	maps.Copy(needed, f.earlier)
	if over := f.projects.Sweep(more, func(digest string) bool { return needed[digest] }); over > 0 {
		return status.Errorf(codes.ResourceExhausted,
			"the projects of builds that wait or run take all the room that the manager has for them: %d bytes too few",
			over)
	}
	return nil
}

// sweepFiles removes files that are too old, until the manager takes no more builds.
func (m *Manager) sweepFiles() {
	tick := time.NewTicker(sweepPause)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-m.takes.Done():
			return
		}
		m.files.artifacts.Sweep(0, nil)
		if err := m.sweepProjects(m.takes, 0); err != nil && m.takes.Err() == nil {
			m.cfg.Logger.Warn("cannot remove the projects of builds that have ended", "error", err)
		}
	}
}

// KeepProject implements pb.ManagerServer.
func (s *service) KeepProject(stream grpc.BidiStreamingServer[pb.KeepProjectRequest, pb.KeepProjectResponse]) error {
	ctx := stream.Context()
	req, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := checkProject(req.GetDigest(), req.GetSize()); err != nil {
		return err
	}
	if s.m.cluster != nil {
		return errNoFiles
	}
	store := s.m.files.projects
	kept, err := store.Find(req.GetDigest(), req.GetSize())
	if err != nil {
		return s.m.failed(ctx, err)
	}
	if kept != nil {
		kept.Close()
		return stream.Send(&pb.KeepProjectResponse{})
	}
	if store.Sweep(req.GetSize(), func(string) bool { return true }) > 0 { // there is no room
		if err := s.m.sweepProjects(ctx, req.GetSize()); err != nil {
			return s.m.failed(ctx, err)
		}
	}
	upload, err := store.Begin(req.GetDigest(), req.GetSize())
	if err != nil {
		return s.m.failed(ctx, err)
	}
	if err := stream.Send(&pb.KeepProjectResponse{Wanted: upload.Missing()}); err != nil {
		upload.Discard()
		return err
	}
	for upload.Missing() > 0 {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			err = status.Error(codes.InvalidArgument, "the stream ended before the archive")
		}
		if err == nil {
			_, err = upload.Write(msg.GetData())
		}
		if err != nil {
			upload.Discard()
			return s.m.failed(ctx, fmt.Errorf("keep the project: %w", err))
		}
	}
	if kept, err = store.Keep(upload); err != nil {
		return s.m.failed(ctx, fmt.Errorf("keep the project: %w", err))
	}
	kept.Close()
	return stream.Send(&pb.KeepProjectResponse{})
}

func checkProject(digest string, size int64) error {
	if err := contents.CheckDigest(digest); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if size < 1 || size > maxProject {
		return status.Errorf(codes.InvalidArgument, "the project's archive has %d bytes: 1 to %d can be kept", size,
			int64(maxProject))
	}
	return nil
}

// project returns the project of a build, or nil.
func (m *Manager) project(job *pb.Job) *files.Project {
	digest := job.GetProject()
	if digest == "" {
		return nil
	}
	return &files.Project{Digest: digest, Size: job.GetProjectBytes(), Open: func() (io.ReadSeekCloser, error) {
		return os.Open(filepath.Join(m.files.projects.Dir, digest))
	}}
}

// artifacts returns the artifacts of a build, or nil. They are kept by the build's ID.
func (m *Manager) artifacts(id string, job *pb.Job) *files.Artifacts {
	if len(job.GetArtifacts()) == 0 {
		return nil
	}
	return &files.Artifacts{
		Paths: job.GetArtifacts(), Dir: m.files.artifacts.Dir, MaxBytes: min(files.DefaultMaxBytes, m.cfg.FileBytes),
		Take: func(_ context.Context, archive *os.File) error {
			if err := archive.Sync(); err != nil {
				return err
			}
			if err := os.Rename(archive.Name(), m.artifactsFile(id)); err != nil {
				return err
			}
			m.files.artifacts.Sweep(0, func(name string) bool { return name == id+artifactsSuffix })
			return nil
		},
	}
}

func (m *Manager) artifactsFile(id string) string {
	return filepath.Join(m.files.artifacts.Dir, id+artifactsSuffix)
}

// artifactsSize returns the length of the artifacts that are kept of a build.
func (m *Manager) artifactsSize(id string) int64 {
	info, err := os.Stat(m.artifactsFile(id))
	if err != nil {
		return 0
	}
	return info.Size()
}

// Artifacts implements pb.ManagerServer.
func (s *service) Artifacts(req *pb.ArtifactsRequest, stream grpc.ServerStreamingServer[pb.ArtifactsResponse]) error {
	ctx := stream.Context()
	b, err := s.m.get(ctx, req.GetId())
	if err != nil {
		return s.m.failed(ctx, err)
	}
	file, err := os.Open(s.m.artifactsFile(b.GetId()))
	switch {
	case err == nil:
	case !errors.Is(err, fs.ErrNotExist):
		return s.m.failed(ctx, err)
	case b.GetPhase() != pb.Build_ended:
		return status.Errorf(codes.NotFound, "the build %s has not ended: it has no artifacts yet", b.GetId())
	case b.GetResult().GetArtifacts() > 0:
		return status.Errorf(codes.NotFound, "the artifacts of the build %s are not kept any more", b.GetId())
	default:
		return status.Errorf(codes.NotFound, "the build %s has no artifacts", b.GetId())
	}
	defer file.Close()
	for {
		data := make([]byte, filePiece) // the stream may keep it
		n, err := file.Read(data)
		if n > 0 {
			if err := stream.Send(&pb.ArtifactsResponse{Data: data[:n]}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return s.m.failed(ctx, err)
		}
	}
}

// errNoFiles refuses files where several managers would have to share them.
var errNoFiles = status.Error(codes.Unimplemented,
	"managers that share their state by NATS keep no projects and no artifacts")

// checkFiles checks the part of a job about files, and keeps its project for the request that is about to be queued.
func (m *Manager) checkFiles(job *pb.Job) error {
	size := 0
	for _, pattern := range job.GetArtifacts() {
		size += len(pattern)
	}
	if len(job.GetArtifacts()) > maxPatterns || size > maxPatternBytes || slices.Contains(job.GetArtifacts(), "") {
		return status.Errorf(codes.InvalidArgument, "there are more than %d patterns of artifacts, they have more than %d "+
			"bytes, or one is empty", maxPatterns, maxPatternBytes)
	}
	if m.cluster != nil && (job.GetProject() != "" || len(job.GetArtifacts()) > 0) {
		return errNoFiles
	}
	if job.GetProject() == "" {
		return nil
	}
	if err := checkProject(job.GetProject(), job.GetProjectBytes()); err != nil {
		return err
	}
	if !m.files.use(job.GetProject()) {
		return status.Error(codes.FailedPrecondition, "the manager does not have the archive of the project")
	}
	return nil
}

// checkLabels returns an error unless a VM has all labels.
func (m *Manager) checkLabels(labels map[string]string) error {
	if len(labels) == 0 {
		return nil
	}
	if slices.ContainsFunc(m.cfg.Group.Instances(), func(in instance.Instance) bool { return hasLabels(in, labels) }) {
		return nil
	}
	var wanted []string
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		wanted = append(wanted, name+"="+labels[name])
	}
	return status.Errorf(codes.InvalidArgument, "no VM has the labels %.200s; see labels in the inventory",
		strings.Join(wanted, " "))
}

// hasLabels reports whether an instance has all labels.
func hasLabels(in instance.Instance, labels map[string]string) bool {
	for name, value := range labels {
		if has, ok := in.Labels[name]; !ok || has != value {
			return false
		}
	}
	return true
}
