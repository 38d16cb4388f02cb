package manager

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/connector/files"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/manager/archive"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/manager/state"
	"github.com/stepmux/stepmux/internal/contents"
	"github.com/stepmux/stepmux/internal/labels"
	"github.com/stepmux/stepmux/internal/wire"
)

// sweepPause is the time between two looks for files that are too old.
const sweepPause = time.Hour

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
		m.services.Sweep()
		if err := m.files.Sweep(m.takes, 0); err != nil && m.takes.Err() == nil {
			m.cfg.Logger.Warn("cannot remove the files of builds that have ended", "error", err)
		}
		if err := m.store.ForgetPipelines(m.takes, state.ForgetAfter); err != nil && m.takes.Err() == nil {
			m.cfg.Logger.Warn("cannot remove the builds of pipelines that are not kept any more", "error", err)
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
	kept, err := s.m.files.HasProject(ctx, req.GetDigest(), req.GetSize())
	if err != nil {
		return s.m.failed(ctx, err)
	}
	if kept {
		return stream.Send(&pb.KeepProjectResponse{})
	}
	upload, err := s.m.files.BeginProject(ctx, req.GetDigest(), req.GetSize())
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
	if err := s.m.files.KeepProject(ctx, upload); err != nil {
		return s.m.failed(ctx, fmt.Errorf("keep the project: %w", err))
	}
	return stream.Send(&pb.KeepProjectResponse{})
}

func checkProject(digest string, size int64) error {
	if err := contents.CheckDigest(digest); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if size < 1 || size > wire.MaxProject {
		return status.Errorf(codes.InvalidArgument, "the project's archive has %d bytes: 1 to %d can be kept", size,
			int64(wire.MaxProject))
	}
	return nil
}

// archives returns the archives that are unpacked for a build: its project, caches, and the artifacts of other jobs.
func (m *Manager) archives(asked *pb.SubmitRequest) (all []*files.Project) {
	add := func(digest string, size int64, cache bool) {
		all = append(all, &files.Project{
			Digest: digest, Size: size, Cache: cache, Open: func(ctx context.Context) (io.ReadSeekCloser, error) {
				return m.files.OpenProject(ctx, digest, size)
			},
		})
	}
	if digest := asked.GetProject(); digest != "" {
		add(digest, asked.GetProjectBytes(), false)
	}
	for _, a := range asked.GetPipeline().GetArchives() {
		add(a.GetDigest(), a.GetSize(), a.GetCache())
	}
	return all
}

// artifacts returns the artifacts of a build, or nil. They are kept by the build's ID.
func (m *Manager) artifacts(id string, asked *pb.SubmitRequest) *files.Artifacts {
	if len(asked.GetArtifacts()) == 0 {
		return nil
	}
	var after func(succeeded bool) []string
	if of := asked.GetPipeline(); len(of.GetAfterSuccess())+len(of.GetAfterFailure()) > 0 {
		after = func(succeeded bool) []string {
			if succeeded {
				return of.GetAfterSuccess()
			}
			return of.GetAfterFailure()
		}
	}
	return &files.Artifacts{
		Paths: asked.GetArtifacts(), After: after, Keep: asked.GetPipeline() != nil,
		Dir: archive.Config{Dir: m.cfg.Dir}.Arrivals(), MaxBytes: min(files.DefaultMaxBytes, m.cfg.FileBytes),
		Take: func(ctx context.Context, file *os.File) error { return m.files.KeepResult(ctx, id, file) },
	}
}

// noteFiles lists in the result of a build the files that are kept of it.
func (m *Manager) noteFiles(b *build, r *state.Result) {
	size := func(of *int64, name string) {
		m.keepTrying("look for "+name, b, func() (err error) {
			*of, err = m.files.ResultSize(m.life, name)
			return err
		})
	}
	if len(b.asked.GetArtifacts()) > 0 {
		size(&r.Artifacts, b.ID)
	}
	if b.asked.GetTrace() {
		size(&r.Trace, archive.Trace(b.ID))
	}
	if b.asked.GetPipeline().GetRemarks() {
		size(&r.Remarks, archive.Remarks(b.ID))
	}
}

// Artifacts implements pb.ManagerServer.
func (s *service) Artifacts(req *pb.ArtifactsRequest, stream grpc.ServerStreamingServer[pb.ArtifactsResponse]) error {
	ctx := stream.Context()
	b, err := s.m.get(ctx, req.GetId())
	if err != nil {
		return s.m.failed(ctx, err)
	}
	what, are, name, size := "artifacts", "are", b.GetId(), b.GetResult().GetArtifacts()
	switch {
	case req.GetTrace():
		what, are, name, size = "trace", "is", archive.Trace(b.GetId()), b.GetResult().GetTrace()
	case req.GetRemarks():
		what, name, size = "annotations", archive.Remarks(b.GetId()), b.GetResult().GetRemarks()
	}
	err = s.m.files.ReadResult(ctx, name, artifactsSender{stream})
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return s.m.failed(ctx, fmt.Errorf("read the %s of the build %s: %w", what, b.GetId(), err))
	case b.GetPhase() != pb.Build_ended:
		return status.Errorf(codes.NotFound, "the build %s has not ended: it has no %s yet", b.GetId(), what)
	case size > 0:
		return status.Errorf(codes.NotFound, "the %s of the build %s %s not kept any more", what, b.GetId(), are)
	default:
		return status.Errorf(codes.NotFound, "the build %s has no %s", b.GetId(), what)
	}
}

// artifactsSender sends a file in pieces.
type artifactsSender struct {
	stream grpc.ServerStreamingServer[pb.ArtifactsResponse]
}

// Write implements io.Writer.
func (a artifactsSender) Write(p []byte) (n int, err error) {
	for piece := range slices.Chunk(p, archive.Piece) {
		if err := a.stream.Send(&pb.ArtifactsResponse{Data: bytes.Clone(piece)}); err != nil { // the stream may keep it
			return n, err
		}
		n += len(piece)
	}
	return n, nil
}

// checkFiles checks the files that a request names, and keeps its project until the request is queued.
func (m *Manager) checkFiles(ctx context.Context, asked *pb.SubmitRequest) error {
	size := 0
	for _, pattern := range asked.GetArtifacts() {
		size += len(pattern)
	}
	if len(asked.GetArtifacts()) > wire.MaxPatterns || size > wire.MaxPatternBytes ||
		slices.Contains(asked.GetArtifacts(), "") {
		return status.Errorf(codes.InvalidArgument, "there are more than %d patterns of artifacts, they have more than %d "+
			"bytes, or one is empty", wire.MaxPatterns, wire.MaxPatternBytes)
	}
	if asked.GetProject() == "" {
		return nil
	}
	if err := checkProject(asked.GetProject(), asked.GetProjectBytes()); err != nil {
		return err
	}
	kept, err := m.files.UseProject(ctx, asked.GetProject(), asked.GetProjectBytes())
	if err == nil && !kept {
		err = status.Error(codes.FailedPrecondition, "the manager does not have the archive of the project")
	}
	return err
}

// checkLabels returns an error unless a VM has all labels, or one that has them can be made.
func (m *Manager) checkLabels(wanted map[string]string) error {
	if len(wanted) == 0 {
		return nil
	}
	has := func(labels map[string]string) bool { return instance.HasLabels(labels, wanted) }
	if slices.ContainsFunc(m.labels(), has) {
		return nil
	}
	return status.Errorf(codes.InvalidArgument, "no VM has the labels %.200s; see labels in the inventory",
		labels.Text(wanted))
}
