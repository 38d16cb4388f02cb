package linger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/internal/wire"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

const (
	// pingInterval is how long a manager may be silent before it is pinged. pingTimeout is how long it may take to
	// answer, before its connection counts as broken. So a link that is cut silently ends, too.
	pingInterval = 15 * time.Second
	pingTimeout  = 15 * time.Second
	// maxReplaced bounds the list of replaced managers.
	maxReplaced = 1000
)

var (
	// ErrUnattended is the cause of a Lease that ended because no manager was attached for its time.
	ErrUnattended = errors.New("no manager came back in time")
	// ErrEnded is the cause of a Lease that its manager has ended.
	ErrEnded = errors.New("the manager has ended the build")

	errReplaced = status.Error(codes.Aborted, "another manager has attached to this build since; the later one wins")
	errNobody   = status.Errorf(codes.InvalidArgument, "the metadata %s is missing or malformed", wire.ManagerKey)
)

// Lease is the life of a serve that lingers. It is safe for concurrent use.
type Lease struct {
	pb.UnimplementedAttachmentServer
	*notices
	most time.Duration

	life context.Context
	end  context.CancelCauseFunc

	mu       sync.Mutex // guards the following
	manager  string     // the present one, or else the last one
	replaced []string   // earlier ones
	attached context.CancelCauseFunc
	serial   int // of the last Attach
	expiry   *time.Timer
}

// New returns a Lease that ends with ctx, or when no manager was attached for the time most. That time begins now. The
// caller calls Close.
func New(ctx context.Context, most time.Duration) *Lease {
	l := &Lease{notices: &notices{more: make(chan struct{})}, most: most, manager: wire.Starter}
	l.life, l.end = context.WithCancelCause(ctx)
	l.expiry = time.AfterFunc(most, l.expire)
	return l
}

// Context returns the context that ends with the Lease. Its cause is ErrUnattended, ErrEnded or that of New's ctx.
func (l *Lease) Context() context.Context { return l.life }

// Close ends the Lease. Calls of Attach return. It is idempotent.
func (l *Lease) Close() {
	l.end(nil)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expiry.Stop()
}

func (l *Lease) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.attached == nil { // otherwise a manager came while the timer fired
		l.end(ErrUnattended)
	}
}

// Options returns the options for the server of serve: it refuses the calls of managers that were replaced, and closes
// the connection of a manager that gives no sign of life.
func (l *Lease) Options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingInterval, Timeout: pingTimeout}),
		grpc.ChainUnaryInterceptor(func(
			ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
		) (any, error) {
			if err := l.check(ctx); err != nil {
				return nil, err
			}
			return handle(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(
			srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler,
		) error {
			if err := l.check(stream.Context()); err != nil {
				return err
			}
			return handle(srv, stream)
		}),
	}
}

// Register makes the service Attachment part of a server that does not serve yet.
func (l *Lease) Register(server *grpc.Server) { pb.RegisterAttachmentServer(server, l) }

// callerOf returns the manager's name in a call, or "" if it has no valid one.
func callerOf(ctx context.Context) string {
	if names := metadata.ValueFromIncomingContext(ctx, wire.ManagerKey); len(names) == 1 && wire.ValidManager(names[0]) {
		return names[0]
	}
	return ""
}

// check refuses the call of a manager that was replaced. It accepts a call without a manager's name, because it carries
// the secret.
func (l *Lease) check(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if name := callerOf(ctx); name != "" && slices.Contains(l.replaced, name) {
		return errReplaced
	}
	return nil
}

// Attach implements the Attachment service.
func (l *Lease) Attach(req *pb.AttachRequest, stream grpc.ServerStreamingServer[pb.AttachResponse]) error {
	name := callerOf(stream.Context())
	if name == "" {
		return errNobody
	}
	ctx, leave, err := l.enter(stream.Context(), name)
	if err != nil {
		return err
	}
	defer leave()
	for offset, first := max(req.GetOffset(), 0), true; ; first = false {
		text, begin, more := l.since(offset)
		if len(text) > 0 || first {
			if err := stream.Send(&pb.AttachResponse{Notices: text, Offset: begin}); err != nil {
				return err
			}
			offset = begin + int64(len(text))
		}
		select {
		case <-more:
		case <-l.life.Done():
			return status.Error(codes.Unavailable, fmt.Sprintf("the step runner ends: %v", context.Cause(l.life)))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// enter makes name the manager. The returned context ends with ctx, or when another call of Attach takes the place of
// this one. The caller calls leave at the end.
func (l *Lease) enter(ctx context.Context, name string) (_ context.Context, leave func(), err error) {
	ctx, end := context.WithCancelCause(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	reason := status.Error(codes.Canceled, "a later call takes the place of this one")
	switch {
	case l.manager == name:
	case slices.Contains(l.replaced, name): // replaced since check
		end(nil)
		return nil, nil, errReplaced
	default:
		l.replaced = append(l.replaced, l.manager)
		if len(l.replaced) > maxReplaced {
			l.replaced = l.replaced[1:]
		}
		reason = errReplaced
	}
	if l.attached != nil {
		l.attached(reason)
	}
	l.manager, l.attached = name, end
	l.serial++
	mine := l.serial
	l.expiry.Stop()
	return ctx, func() {
		end(nil)
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.serial == mine {
			l.attached = nil
			l.expiry.Reset(l.most)
		}
	}, nil
}

// End implements the Attachment service.
func (l *Lease) End(ctx context.Context, req *pb.EndRequest) (*pb.EndResponse, error) {
	if callerOf(ctx) == "" {
		return nil, errNobody
	}
	text, begin, _ := l.since(req.GetOffset())
	l.end(ErrEnded)
	return &pb.EndResponse{Notices: text, Offset: begin}, nil
}
