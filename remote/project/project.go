package project

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/internal/contents"
	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/wire"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/proc"
)

// piece is the size of the pieces in which an archive is sent, in bytes.
const piece = 256 << 10

// Config says where a Project keeps files.
type Config struct {
	// Dir is the private directory of the build. The job's directory is made in it. Required.
	Dir string
	// CacheDir has the archives of all builds of the user. It is made if it is missing. If it is empty, or other users
	// can get into it, archives are in Dir, for this build only.
	CacheDir string
	// Command is the program that packs and unpacks archives, with its first arguments. Required.
	Command []string
	// Start starts it, as it starts the processes of the build's jobs: it sees the files that they see, and is within
	// their limits. Required.
	Start func(context.Context, proc.Command) (*proc.Process, error)
}

// Project serves the service Files for one build. It is safe for concurrent use; calls run one after the other.
type Project struct {
	pb.UnimplementedFilesServer
	cfg Config

	turn   chan struct{}    // held by the running call; guards the following
	placed []placed         // the archives
	upload *contents.Upload // an archive that has arrived in part; may be nil
	packed *os.File
	digest string // of packed, if builds share archives
	note   string
}

// placed is an archive that was unpacked, or left out because of note. Without an archive the digest is empty.
type placed struct {
	digest string
	size   int64
	note   string
}

// New returns a Project. The caller closes it.
func New(cfg Config) *Project { return &Project{cfg: cfg, turn: make(chan struct{}, 1)} }

// Register makes the service Files part of a server that does not serve yet.
func (p *Project) Register(server *grpc.Server) { pb.RegisterFilesServer(server, p) }

// Close waits for the running calls, which end with their server, and removes an archive that has arrived in part.
func (p *Project) Close() {
	p.turn <- struct{}{}
	p.upload.Discard()
	p.upload = nil
	if p.packed != nil {
		p.packed.Close()
	}
}

// dir returns the job's directory.
func (p *Project) dir() string { return filepath.Join(p.cfg.Dir, "project") }

// take waits for the turn of a call. The call returns the turn at its end.
func (p *Project) take(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// Place implements the service Files, and so does Collect.
func (p *Project) Place(stream grpc.BidiStreamingServer[pb.PlaceRequest, pb.PlaceResponse]) error {
	req, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := check(req); err != nil {
		return err
	}
	ctx := stream.Context()
	if err := p.take(ctx); err != nil {
		return err
	}
	defer func() { <-p.turn }()
	after := int(req.GetAfter())
	switch {
	case after > len(p.placed):
		return status.Errorf(codes.FailedPrecondition, "the archive is the one after %d others, and the build has %d", after,
			len(p.placed))
	case after == len(p.placed):
		if err := p.place(stream, req); err != nil {
			return answer(ctx, err)
		}
	}
	if p.placed[after].digest != req.GetDigest() {
		return status.Error(codes.AlreadyExists, "the build has another project already")
	}
	return stream.Send(&pb.PlaceResponse{Dir: p.dir(), Note: p.placed[after].note})
}

// check checks a request that names an archive.
func check(req *pb.PlaceRequest) error {
	if !req.GetAsk() {
		return status.Error(codes.InvalidArgument, "the request names no archive")
	}
	if after := req.GetAfter(); after < 0 || after >= wire.MaxArchives {
		return status.Errorf(codes.InvalidArgument, "the archive is the one after %d others: a build has at most %d", after,
			wire.MaxArchives)
	}
	if req.GetDigest() == "" && req.GetSize() == 0 && req.GetAfter() == 0 {
		return nil
	}
	if err := contents.CheckDigest(req.GetDigest()); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if req.GetSize() < 1 || req.GetSize() > wire.MaxProject {
		return status.Errorf(codes.InvalidArgument, "the project's archive has %d bytes: 1 to %d can be brought",
			req.GetSize(), int64(wire.MaxProject))
	}
	return nil
}

// answer returns err as an answer of the step runner, so that the manager does not mistake it for a broken connection.
func answer(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	code := codes.FailedPrecondition
	if oserr.NoSpace(err) {
		code = codes.ResourceExhausted
	}
	return status.Error(code, err.Error())
}

// place makes the job's directory, or unpacks a further archive in it.
func (p *Project) place(
	stream grpc.BidiStreamingServer[pb.PlaceRequest, pb.PlaceResponse], req *pb.PlaceRequest,
) error {
	var archive *os.File
	if req.GetDigest() != "" {
		var err error
		if archive, err = p.archive(stream, req); err != nil {
			return err
		}
		defer archive.Close()
	}
	if len(p.placed) == 0 {
		// An earlier call may have left an incomplete directory.
		if err := os.RemoveAll(p.dir()); err != nil {
			return err
		}
		if err := os.Mkdir(p.dir(), 0o755); err != nil {
			return oserr.Hint(err, p.cfg.Dir)
		}
	}
	one := placed{digest: req.GetDigest(), size: req.GetSize()}
	if archive != nil {
		args := []string{"unpack"}
		if req.GetCache() {
			args = append(args, outsideLinks)
		}
		_, err := p.run(stream.Context(), archive, nil, args...)
		if why, said := errors.AsType[programError](err); said && req.GetCache() && !oserr.NoSpace(err) {
			one.note, err = why.Error(), nil
		}
		if err != nil {
			return fmt.Errorf("unpack the project: %w", err)
		}
	}
	p.placed = append(p.placed, one)
	return nil
}

// outsideLinks is the flag of the programs that pack and unpack, for a cache, and untracked that of the one that packs.
const outsideLinks, untracked = "--outside-links", "--untracked"

// errForgotten says that the files of the project are not known any more.
var errForgotten = errors.New("the archive of the project is not kept any more, by which its files are known")

// archive returns the archive in a request, from the cache or from the stream. The caller closes it.
func (p *Project) archive(
	stream grpc.BidiStreamingServer[pb.PlaceRequest, pb.PlaceResponse], req *pb.PlaceRequest,
) (*os.File, error) {
	store, _, err := p.store()
	if err != nil {
		return nil, err
	}
	for {
		file, err := store.Find(req.GetDigest(), req.GetSize())
		if err != nil {
			return nil, err
		}
		if file != nil {
			return file, stream.Send(&pb.PlaceResponse{})
		}
		if p.upload == nil || p.upload.Digest != req.GetDigest() {
			p.upload.Discard()
			store.Sweep(req.GetSize(), nil)
			if p.upload, err = store.Begin(req.GetDigest(), req.GetSize()); err != nil {
				return nil, err
			}
		}
		if err := stream.Send(&pb.PlaceResponse{Wanted: p.upload.Missing()}); err != nil {
			return nil, err
		}
		msg, err := stream.Recv()
		if err != nil {
			return nil, hangup(err)
		}
		if !msg.GetAsk() {
			return p.receive(stream, store, msg)
		}
	}
}

// receive receives and keeps the rest of an archive. msg is its first piece.
func (p *Project) receive(
	stream grpc.BidiStreamingServer[pb.PlaceRequest, pb.PlaceResponse], store *contents.Store, msg *pb.PlaceRequest,
) (*os.File, error) {
	for {
		if _, err := p.upload.Write(msg.GetData()); err != nil {
			p.upload.Discard()
			p.upload = nil
			return nil, fmt.Errorf("keep the project's archive: %w", err)
		}
		if p.upload.Missing() == 0 {
			break
		}
		var err error
		if msg, err = stream.Recv(); err != nil {
			return nil, hangup(err)
		}
	}
	whole := p.upload
	p.upload = nil
	file, err := store.Keep(whole)
	if err != nil {
		return nil, fmt.Errorf("keep the project's archive: %w", err)
	}
	return file, stream.Send(&pb.PlaceResponse{Stored: true})
}

// hangup returns the error of a stream that has ended too early.
func hangup(err error) error {
	if errors.Is(err, io.EOF) {
		return status.Error(codes.InvalidArgument, "the stream ended before the archive")
	}
	return err
}

// Collect implements the service Files.
func (p *Project) Collect(req *pb.CollectRequest, stream grpc.ServerStreamingServer[pb.CollectResponse]) error {
	total := 0
	for _, path := range req.GetPaths() {
		total += len(path)
	}
	if len(req.GetPaths()) > wire.MaxPatterns || total > wire.MaxPatternBytes {
		return status.Errorf(codes.InvalidArgument, "the patterns of the artifacts are more than %d, or longer than %d bytes",
			wire.MaxPatterns, wire.MaxPatternBytes)
	}
	ctx := stream.Context()
	if err := p.take(ctx); err != nil {
		return err
	}
	defer func() { <-p.turn }()
	if p.placed == nil {
		return status.Error(codes.FailedPrecondition, "the build has no directory of a project")
	}
	if p.packed == nil || req.GetOffset() == 0 {
		if err := p.pack(ctx, req); err != nil {
			return answer(ctx, err)
		}
	}
	info, err := p.packed.Stat()
	if err != nil {
		return answer(ctx, err)
	}
	same := p.digest != "" && p.digest == req.GetHas()
	if err := stream.Send(&pb.CollectResponse{Size: info.Size(), Note: p.note, Same: same}); err != nil || same {
		return err
	}
	from := io.NewSectionReader(p.packed, req.GetOffset(), max(info.Size()-req.GetOffset(), 0))
	for {
		data := make([]byte, piece) // a new one for each message, because the stream may keep it
		n, err := from.Read(data)
		if n > 0 {
			if err := stream.Send(&pb.CollectResponse{Data: data[:n]}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return answer(ctx, err)
		}
	}
}

// pack packs files of the job's directory. If the request says so, the archive is kept for later builds, as far as
// builds share archives.
func (p *Project) pack(ctx context.Context, req *pb.CollectRequest) error {
	if p.packed != nil {
		p.packed.Close()
		p.packed = nil
	}
	p.digest = ""
	file, kept, err := p.create(req.GetKeep())
	if err != nil {
		return err
	}
	p.note, err = p.packInto(ctx, file, req)
	if gone := unix.Access(p.dir(), unix.X_OK); err != nil && gone != nil { // by the job: that is no failure
		p.note, err = fmt.Sprintf("the job's work directory cannot be entered any more: %v", gone), nil
	}
	if err == nil && kept != nil {
		p.digest, err = kept(file)
	}
	if err != nil {
		file.Close()
		if kept != nil {
			_ = os.Remove(file.Name())
		}
		return fmt.Errorf("pack the artifacts: %w", err)
	}
	p.packed = file
	return nil
}

// packInto runs the program that packs.
func (p *Project) packInto(ctx context.Context, file *os.File, req *pb.CollectRequest) (note string, err error) {
	args, paths := []string{"pack"}, req.GetPaths()
	if req.GetCache() {
		args = append(args, outsideLinks)
	}
	var project *os.File
	switch first := p.placed[0]; {
	case !req.GetUntracked():
	case first.digest == "":
		paths = []string{"."}
	default:
		store, _, err := p.store()
		if err != nil {
			return "", err
		}
		if project, err = store.Find(first.digest, first.size); err != nil {
			return "", err
		}
		if project == nil {
			return "", errForgotten
		}
		defer project.Close()
		args = append(args, untracked)
	}
	return p.run(ctx, project, file, slices.Concat(args, []string{"--"}, paths)...)
}

// create creates a file for artifacts. If kept is not nil, the file has a name: the caller calls kept when the file is
// complete, or else removes it.
func (p *Project) create(keep bool) (file *os.File, kept func(*os.File) (string, error), err error) {
	if keep {
		store, shared, err := p.store()
		if err != nil {
			return nil, nil, err
		}
		if shared {
			file, err := store.Create()
			return file, store.Adopt, err
		}
	}
	if file, err = os.CreateTemp(p.cfg.Dir, "artifacts"); err != nil {
		return nil, nil, oserr.Hint(err, p.cfg.Dir)
	}
	if err := os.Remove(file.Name()); err != nil {
		file.Close()
		return nil, nil, err
	}
	return file, nil, nil
}
