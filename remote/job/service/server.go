package service

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/remote/api/runnerproto"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/job"
)

const (
	// maxMessage bounds one message in either direction; a job's script is the largest.
	maxMessage = 64 << 20
	// maxStreams bounds the calls on one connection. A follower of a job needs two.
	maxStreams = 4096
	// pingInterval is the shortest interval at which clients may ping.
	pingInterval = 5 * time.Second
)

// NewServer returns a server of the jobs in store, which accepts no connections yet. It trusts every connection and
// call that the listener and the options let through. The caller ends it, with [Stop], before it closes the store. Jobs
// do not end with the server.
func NewServer(store *job.Store, options ...grpc.ServerOption) *grpc.Server {
	server := grpc.NewServer(append([]grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(maxMessage),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(64 << 10),
		// With windows of this size, output can run a little ahead of slow readers, and a script does not need a round
		// trip for each 64 KiB.
		grpc.InitialWindowSize(1 << 20),
		grpc.InitialConnWindowSize(4 << 20),
		grpc.WriteBufferSize(128 << 10),
		grpc.ReadBufferSize(64 << 10),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingInterval, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(recoverUnary),
		grpc.ChainStreamInterceptor(recoverStream),
	}, options...)...)
	pb.RegisterStepRunnerServer(server, &runner{store: store})
	runnerproto.RegisterStepRunnerServer(server, &manager{store: store})
	return server
}

// errPanic is the error of a call that panicked. It does not repeat the panic's value, because that may be secret.
var errPanic = status.Error(codes.Internal, "internal error of the step runner")

// recovered turns a panic into the error of its call. Without it, one bad call would end all jobs of the build.
func recovered(err *error) {
	if recover() != nil {
		*err = errPanic
	}
}

func recoverUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (_ any, err error) {
	defer recovered(&err)
	return handle(ctx, req)
}

func recoverStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
	defer recovered(&err)
	return handle(srv, stream)
}
