package control

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/stepmux/stepmux/instance"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
)

const (
	// maxCalls bounds the calls of one client at once, and maxHeaders the headers of one call, in bytes.
	maxCalls, maxHeaders = 1000, 16 << 10
	// maxRequest bounds a request to a run, in bytes, and maxConns the connections to a run.
	maxRequest, maxConns = 64 << 10, 500
	// greetTime bounds the wait for the first bytes of a client, and idleTime that for its next call to a run.
	greetTime, idleTime = 10 * time.Second, 30 * time.Second
)

// NewServer returns a gRPC server of the service of package managerv1, for listeners on unix sockets. The Peer of a
// connection is the AuthInfo of its calls.
func NewServer(service pb.ManagerServer, options ...grpc.ServerOption) *grpc.Server {
	server := grpc.NewServer(append([]grpc.ServerOption{
		grpc.Creds(peerCredentials{insecure.NewCredentials()}), grpc.ConnectionTimeout(greetTime),
		grpc.MaxSendMsgSize(pb.MaxAnswer), grpc.MaxConcurrentStreams(maxCalls), grpc.MaxHeaderListSize(maxHeaders),
	}, options...)...)
	pb.RegisterManagerServer(server, service)
	return server
}

// Config is the configuration of a Server.
type Config struct {
	// Path is where the socket is made. If empty, a name unique to the process in Dir.
	Path string
	// Status describes Provider, and drain acts on Group. Both are required.
	Provider *instance.Provider
	Group    *instance.Group
	// Version is the program's version.
	Version string
	// InventoryErr returns the error in the inventory's newest version, or nil. May be nil.
	InventoryErr func() error
}

// Server answers the calls of operators to a run: Status, Drain and Undrain of the service of package managerv1.
type Server struct {
	path    string
	dir     string // to be removed with the socket; empty if it is not ours
	grpc    *grpc.Server
	serving sync.WaitGroup
	close   sync.Once
}

// Serve makes the socket and answers calls until Close. The socket of a dead process is replaced; that of a living one
// is an error.
func Serve(cfg Config) (*Server, error) {
	if cfg.Provider == nil || cfg.Group == nil {
		return nil, errors.New("control: Config.Provider or Group is nil")
	}
	listener, dir, err := listen(cfg.Path)
	if err != nil {
		return nil, err
	}
	s := &Server{path: listener.Addr().String(), dir: dir, grpc: NewServer(
		&service{cfg: cfg, since: time.Now()},
		grpc.InTapHandle(admit), grpc.MaxRecvMsgSize(maxRequest), grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleTime}),
	)}
	s.serving.Go(func() { _ = s.grpc.Serve(netutil.LimitListener(ownListener{listener}, maxConns)) }) // until Close
	return s, nil
}

// Path returns the path of the socket.
func (s *Server) Path() string { return s.path }

// Close removes the socket, ends the connections and waits for them. Idempotent.
func (s *Server) Close() {
	s.close.Do(func() {
		s.grpc.Stop()
		s.serving.Wait()
		if s.dir != "" {
			_ = os.Remove(s.dir) // unless another manager has its socket there
		}
	})
}

// admit refuses the calls that need a queue, before anything of them but their headers is read.
func admit(ctx context.Context, call *tap.Info) (context.Context, error) {
	switch call.FullMethodName {
	case pb.Manager_Status_FullMethodName, pb.Manager_Drain_FullMethodName, pb.Manager_Undrain_FullMethodName:
		return ctx, nil
	}
	return ctx, status.Error(codes.Unimplemented, "this is a stepmux run, not a manager: only ps, drain and undrain work "+
		"with it; name the socket of a manager with --manager, or start one with stepmux manager")
}

// service implements the calls that a run answers.
type service struct {
	pb.UnimplementedManagerServer
	cfg   Config
	since time.Time
}

// Status implements pb.ManagerServer, as do the following.
func (s *service) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	return StatusOf(s.cfg, s.since).Response(), nil
}

func (s *service) Drain(_ context.Context, req *pb.DrainRequest) (*pb.DrainResponse, error) {
	if req.GetNote() != "" || req.GetFor() != nil {
		return nil, status.Error(codes.InvalidArgument, "--note and --for are for managers")
	}
	return &pb.DrainResponse{}, each(req.GetInstances(), s.cfg.Group.Drain)
}

func (s *service) Undrain(_ context.Context, req *pb.UndrainRequest) (*pb.UndrainResponse, error) {
	return &pb.UndrainResponse{}, each(req.GetInstances(), s.cfg.Group.Undrain)
}

// each calls verb, which fails only for an instance that the group does not have, for instances until it fails.
func each(ids []string, verb func(id string) error) error {
	for _, id := range ids {
		if err := verb(id); err != nil {
			return status.Error(codes.NotFound, err.Error())
		}
	}
	return nil
}
