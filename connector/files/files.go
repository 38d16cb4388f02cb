package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

const (
	// piece is the size of the pieces in which an archive is sent.
	piece = 256 << 10
	// DefaultMaxBytes is the default of Artifacts.MaxBytes.
	DefaultMaxBytes = 4 << 30
)

// Project is the archive of a project's files, tar in zstd. Several builds may use the same Project at the same time.
type Project struct {
	// Digest is the archive's SHA-256, in lower hexadecimal, and Size its length in bytes.
	Digest string
	Size   int64
	// Open opens the archive, and may have to fetch it first: ctx bounds that. It is called for each transfer, at any
	// time until the build has ended.
	Open func(ctx context.Context) (io.ReadSeekCloser, error)
	// Cache says that the archive is a cache: it may have links that lead out, and the build goes on without one that
	// cannot be unpacked. Unpacked is called when it was unpacked, or with the VM's reason why not, which is untrusted
	// text. May be nil.
	Cache    bool
	Unpacked func(leftOut string)
}

// Artifacts selects the files of a build that are collected at its end.
type Artifacts struct {
	// Paths are patterns of files and directories in the build's work directory, such as dist/**/*.tar. A directory
	// includes everything below it.
	Paths []string
	// After returns those of Paths that are collected after a job that succeeded, or that failed. If nil, all are.
	After func(succeeded bool) []string
	// MaxBytes bounds the archive. If zero, DefaultMaxBytes.
	MaxBytes int64
	// Keep says that other builds will get the archive: a VM keeps it, and need not be sent it.
	Keep bool
	// Dir is where the archive is stored until Take has returned. If empty, the directory for temporary files.
	Dir string
	// Take receives the archive of the files, tar in zstd. It is not called if no file matched. The archive is
	// untrusted. Take may rename the file; otherwise the file is removed afterwards.
	Take func(ctx context.Context, archive *os.File) error
}

// VM remembers which archives a VM has. The zero value is ready to use. It is safe for concurrent use.
type VM struct {
	apart atomic.Bool // builds are isolated from each other and share no archives

	mu    sync.Mutex // guards the following
	turns map[string]*turn
}

// turn is held by the build that is sending an archive.
type turn struct {
	held  chan struct{} // guards sent
	users int
	sent  bool // an earlier holder has sent the archive
}

// take waits until no other build is sending this archive to the VM. The caller calls release.
func (v *VM) take(ctx context.Context, digest string) (t *turn, release func(), err error) {
	v.mu.Lock()
	if t = v.turns[digest]; t == nil {
		t = &turn{held: make(chan struct{}, 1)}
		if v.turns == nil {
			v.turns = map[string]*turn{}
		}
		v.turns[digest] = t
	}
	t.users++
	v.mu.Unlock()
	leave := func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(v.turns, digest)
		}
	}
	select {
	case t.held <- struct{}{}:
		return t, func() { <-t.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, nil, context.Cause(ctx)
	}
}

// Place creates the work directory of a build, with the files of a project unless p is nil, and returns its path on
// the VM. After a transport error it can be called again: progress is true if bytes have arrived, which are not sent
// again. If after is not 0, p is unpacked over the archives of so many earlier calls.
func (v *VM) Place(
	ctx context.Context, rpc pb.FilesClient, after int, p *Project,
) (dir string, progress bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := rpc.Place(ctx)
	if err != nil {
		return "", false, err
	}
	name := &pb.PlaceRequest{Ask: true, After: int32(after)}
	if p != nil {
		name.Digest, name.Size, name.Cache = p.Digest, p.Size, p.Cache
	}
	s := sending{stream, name}
	resp, err := s.ask()
	switch wanted := resp.GetWanted(); {
	case err != nil || wanted == 0:
	case p == nil || wanted < 0:
		err = fmt.Errorf("the step runner wants %d bytes of a project, and the build has %d bytes", wanted, name.Size)
	default:
		resp, progress, err = v.send(ctx, s, p, wanted)
	}
	for err == nil && resp.GetDir() == "" {
		resp, err = s.receive()
	}
	if err == nil && p != nil && p.Cache && p.Unpacked != nil {
		p.Unpacked(resp.GetNote())
	}
	return resp.GetDir(), progress, err
}

// send sends the part of an archive that the VM lacks, unless another build has sent it first.
func (v *VM) send(
	ctx context.Context, s sending, p *Project, wanted int64,
) (resp *pb.PlaceResponse, progress bool, err error) {
	if !v.apart.Load() {
		t, release, takeErr := v.take(ctx, p.Digest)
		if takeErr != nil {
			return nil, false, takeErr
		}
		defer release()
		if resp, err = s.ask(); err != nil || resp.GetWanted() == 0 {
			return resp, false, err
		}
		wanted = resp.GetWanted()
		if t.sent { // another build has sent it, but builds share no archives here: each sends its own
			v.apart.Store(true)
		}
		defer func() { t.sent = t.sent || err == nil }()
	}
	if wanted > p.Size {
		return nil, false, fmt.Errorf("the step runner asks for %d bytes of an archive of %d", wanted, p.Size)
	}
	archive, err := p.Open(ctx)
	if err != nil {
		return nil, false, fmt.Errorf("open the project's archive: %w", err)
	}
	defer archive.Close()
	if _, err := archive.Seek(p.Size-wanted, io.SeekStart); err != nil {
		return nil, false, fmt.Errorf("read the project's archive: %w", err)
	}
	for left := wanted; left > 0; {
		data := make([]byte, min(piece, left)) // a new slice each time: the stream may keep it
		if _, err := io.ReadFull(archive, data); err != nil {
			return nil, progress, fmt.Errorf("read the project's archive: %w", err)
		}
		if err := s.stream.Send(&pb.PlaceRequest{Data: data}); err != nil {
			break // receive returns the reason
		}
		left -= int64(len(data))
		progress = true
	}
	resp, err = s.receive()
	return resp, progress, err
}

// sending is a call of Place on the wire.
type sending struct {
	stream grpc.BidiStreamingClient[pb.PlaceRequest, pb.PlaceResponse]
	name   *pb.PlaceRequest
}

func (s sending) ask() (*pb.PlaceResponse, error) {
	_ = s.stream.Send(s.name) // receive returns the error
	return s.receive()
}

func (s sending) receive() (*pb.PlaceResponse, error) {
	resp, err := s.stream.Recv()
	if errors.Is(err, io.EOF) {
		return nil, status.Error(codes.Unavailable, "the step runner ended the call before the files were there")
	}
	return resp, err
}

// CollectError reports that the artifacts of a successful job could not be collected.
type CollectError struct{ Err error }

func (e *CollectError) Error() string { return "collect the artifacts: " + e.Err.Error() }

// Unwrap returns Err.
func (e *CollectError) Unwrap() error { return e.Err }

// Collection is the archive of a build's artifacts while it is being received.
type Collection struct {
	of      Artifacts
	file    *os.File // nil before the first piece
	arrived int64
	size    int64
	// Of a Cache: has is the archive that the caller has, and same says that the VM's is the same.
	isCache, untracked, same bool
	has                      string
	// Note is the VM's text about patterns that matched no file and about files that were left out. It is untrusted
	// text.
	Note string
}

// Collect returns an empty Collection for these artifacts. The caller calls Close.
func (a Artifacts) Collect() *Collection { return &Collection{of: a} }

// Receive receives the archive from the VM or, after a transport error, the rest of it. progress is true if bytes
// have arrived.
func (c *Collection) Receive(ctx context.Context, rpc pb.FilesClient) (progress bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := rpc.Collect(ctx, &pb.CollectRequest{
		Paths: c.of.Paths, Offset: c.arrived, Keep: c.of.Keep, Cache: c.isCache, Has: c.has, Untracked: c.untracked,
	})
	if err != nil {
		return false, err
	}
	first, err := stream.Recv()
	if errors.Is(err, io.EOF) {
		err = errors.New("the step runner did not say how large the artifacts are")
	}
	if err == nil {
		err = c.begin(first)
	}
	if err != nil {
		return false, err
	}
	for c.arrived < c.size && !c.same {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			err = status.Error(codes.Unavailable, "the step runner ended the call before all artifacts had arrived")
		}
		if err != nil {
			return progress, err
		}
		data := msg.GetData()
		if int64(len(data)) > c.size-c.arrived {
			return progress, errors.New("the step runner sent more bytes of artifacts than it has")
		}
		n, err := c.file.Write(data)
		c.arrived += int64(n)
		if err != nil {
			return progress, err
		}
		progress = progress || n > 0
	}
	return progress, nil
}

// begin handles the first message of a call.
func (c *Collection) begin(first *pb.CollectResponse) error {
	if c.has != "" && first.GetSame() {
		c.same, c.Note = true, first.GetNote()
		return nil
	}
	size, most := first.GetSize(), c.of.MaxBytes
	if most == 0 {
		most = DefaultMaxBytes
	}
	switch {
	case size < 0:
		return fmt.Errorf("the step runner has %d bytes of artifacts", size)
	case size > most:
		return fmt.Errorf("they are %d bytes, compressed, and at most %d are taken", size, most)
	case c.arrived > 0 && size != c.size:
		return errors.New("the step runner has other artifacts than before")
	case c.file == nil && size > 0:
		var err error
		if c.file, err = os.CreateTemp(c.of.Dir, ".artifacts-"); err != nil {
			return err
		}
	}
	c.size, c.Note = size, first.GetNote()
	return nil
}

// Take passes the complete archive to Artifacts.Take.
func (c *Collection) Take(ctx context.Context) error {
	if c.file == nil {
		return nil
	}
	if _, err := c.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return c.of.Take(ctx, c.file)
}

// Close removes the archive's file, unless Take has renamed it.
func (c *Collection) Close() {
	if c.file != nil {
		c.file.Close()
		_ = os.Remove(c.file.Name()) // fails if Take has renamed it
	}
}
