package manager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/manager/command"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
)

// maxHeldInput bounds the input of a command that its caller has sent and that it has not read. A caller that sends
// more waits, and its signals with it.
const maxHeldInput = 8 << 20

// Reserve gives a slot.
func (s *service) Reserve(req *pb.ReserveRequest, stream grpc.ServerStreamingServer[pb.ReserveResponse]) error {
	r := leaseRequest{
		name: req.GetLease(), labels: req.GetLabels(), instance: req.GetInstance(), limit: req.GetLimit().AsDuration(),
	}
	ctx := stream.Context()
	if req.GetWithParent() {
		var err error
		if r.holder, err = parentOf(ctx); err != nil {
			s.m.cfg.Logger.Warn("a lease cannot end with the process that holds it", "lease", r.name, "error", err)
		}
	}
	l, fresh, missing, err := s.m.reserve(ctx, r, func(ahead int) error {
		return stream.Send(&pb.ReserveResponse{Ahead: int64(ahead)})
	})
	if err != nil {
		return s.m.refused(ctx, err)
	}
	err = stream.Send(&pb.ReserveResponse{Lease: l.name, Instance: l.executor.Instance(), Missing: missing})
	if err != nil && fresh {
		_ = s.m.release(ctx, l, endReleased) // the caller does not know it; it ends by itself
	}
	return err
}

// refused returns the answer for an error about a lease.
func (m *Manager) refused(ctx context.Context, err error) error {
	failed, built := errors.AsType[*instance.BuildError](err)
	switch {
	case errors.Is(err, errLeaseName):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, errLeaseWaits):
		return status.Error(codes.AlreadyExists, err.Error())
	case errors.Is(err, errLeases), errors.Is(err, errLeaseElsewhere):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, instance.ErrUnknown):
		return status.Error(codes.FailedPrecondition, err.Error())
	case built && ctx.Err() == nil && m.takes.Err() == nil:
		return status.Error(codes.Internal, failed.Err.Error())
	}
	return m.failed(ctx, err)
}

// Release ends a lease.
func (s *service) Release(ctx context.Context, req *pb.ReleaseRequest) (*pb.ReleaseResponse, error) {
	l := s.m.leaseOf(req.GetLease())
	if l == nil {
		if err := context.Cause(s.m.takes); err != nil { //nolint:contextcheck // the manager's end, not ctx's
			return nil, s.m.failed(ctx, err) // its record may stay, for the next manager
		}
		return &pb.ReleaseResponse{}, nil
	}
	if err := s.m.release(ctx, l, endReleased); err != nil {
		return nil, s.m.failed(ctx, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kept {
		return nil, s.m.failed(ctx, fmt.Errorf("the record of the lease %s stays", l.name))
	}
	return &pb.ReleaseResponse{Left: l.left}, nil
}

// Exec runs a command.
func (s *service) Exec(stream grpc.BidiStreamingServer[pb.ExecRequest, pb.ExecResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if start == nil {
		return status.Error(codes.InvalidArgument, "the first message of Exec has no start")
	}
	l := s.m.findLease(start.GetLease())
	if l == nil {
		return status.Error(codes.NotFound, s.m.noLease(start.GetLease()))
	}
	line := command.Line{Text: start.GetCommand(), Tools: start.GetTools()}
	if err := line.Check(); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	in := command.NewInputs(maxHeldInput)
	defer in.Stop()
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	go func() { // it ends with the call
		for {
			msg, err := stream.Recv()
			switch what := msg.GetWhat().(type) {
			case *pb.ExecRequest_Input:
				_, _ = in.Write(what.Input) // the command may have ended
			case *pb.ExecRequest_EndInput:
				in.End()
			case *pb.ExecRequest_Signal:
				in.Signal(what.Signal)
			}
			if errors.Is(err, io.EOF) {
				in.End()
			}
			if err != nil {
				return
			}
		}
	}()
	out := &execOutputs{stream: stream}
	code, err := l.commands.Run(ctx, line, in, out.writer(false), out.writer(true))
	if s.m.takes.Err() != nil && err != nil {
		return status.Error(codes.Unavailable, "the manager is shutting down")
	}
	if stream.Context().Err() != nil {
		return status.FromContextError(stream.Context().Err()).Err()
	}
	exit := &pb.ExecResponse_Exit{Code: int32(code)} // an exit code
	// The end of a lease kills its commands.
	if why := l.end(); why != "" && (err != nil || code != 0) {
		err = fmt.Errorf("the lease %s has ended: %s", l.name, why)
	}
	if err != nil {
		exit.Error = err.Error()
	}
	return stream.Send(&pb.ExecResponse{What: &pb.ExecResponse_Exit_{Exit: exit}})
}

// execOutputs sends the output of a command.
type execOutputs struct {
	mu     sync.Mutex // held to send
	stream grpc.BidiStreamingServer[pb.ExecRequest, pb.ExecResponse]
}

type execWriter struct {
	to     *execOutputs
	stderr bool
}

func (o *execOutputs) writer(stderr bool) io.Writer { return execWriter{o, stderr} }

// Write implements io.Writer.
func (w execWriter) Write(p []byte) (int, error) {
	for sent := 0; sent < len(p); {
		piece := p[sent:min(sent+command.Piece, len(p))]
		msg := &pb.ExecResponse{What: &pb.ExecResponse_Stdout{Stdout: piece}}
		if w.stderr {
			msg.What = &pb.ExecResponse_Stderr{Stderr: piece}
		}
		w.to.mu.Lock()
		err := w.to.stream.Send(msg)
		w.to.mu.Unlock()
		if err != nil {
			return sent, err
		}
		sent += len(piece)
	}
	return len(p), nil
}
