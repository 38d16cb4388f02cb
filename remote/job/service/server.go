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
	// maxMessage bounds one message, either way: a script of a job above all.
	maxMessage = 64 << 20
	// maxStreams bounds the calls on one connection. A job that is followed has two.
	maxStreams = 4096
	// pingInterval is how often clients may ping.
	pingInterval = 5 * time.Second
)

// NewServer returns a server of the jobs in store. It accepts no connections yet, and whoever is let in
// is trusted: the listener checks who connects, and one of the options may look at each call. It is stopped before
// the store is closed; jobs do not end with it.
func NewServer(store *job.Store, options ...grpc.ServerOption) *grpc.Server {
	server := grpc.NewServer(append([]grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(maxMessage),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(64 << 10),
		// Output goes out at the pace of the slowest part on the way; these let it run ahead a little, and
		// a script come in without a round trip for each 64 KiB.
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

// errPanic is all a caller is told of a panic: the value may hold anything.
var errPanic = status.Error(codes.Internal, "internal error of the step runner")

// recoverUnary makes a panic the failure of the call it is in. Without it, one bad call would end every
// job of the build.
func recoverUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if recover() != nil {
			resp, err = nil, errPanic
		}
	}()
	return handle(ctx, req)
}

func recoverStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
	defer func() {
		if recover() != nil {
			err = errPanic
		}
	}()
	return handle(srv, stream)
}
