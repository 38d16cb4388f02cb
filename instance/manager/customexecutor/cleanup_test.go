package customexecutor

import (
	"bytes"
	"context"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
)

// ending is a manager that ends during the first call, and its successor.
type ending struct {
	pb.UnimplementedManagerServer
	calls atomic.Int64
}

func (e *ending) Release(_ context.Context, req *pb.ReleaseRequest) (*pb.ReleaseResponse, error) {
	if e.calls.Add(1) == 1 {
		return nil, status.Error(codes.Unavailable, "the manager is shutting down")
	}
	return &pb.ReleaseResponse{Left: []string{req.GetLease()}}, nil
}

// Symptom: of a manager that did not answer, as one that is stopped, the driver said that none listens; and in either
// case that the reason is a timeout.
func TestTheDriverSaysWhyItDoesNotReachAManager(t *testing.T) {
	before := awayLimit
	awayLimit = 300 * time.Millisecond
	defer func() { awayLimit = before }()
	socket := filepath.Join(t.TempDir(), "m")
	call := func() string {
		var messages bytes.Buffer
		require.Equal(t, 2, Main(Call{
			Args: []string{"--manager", socket, "cleanup"}, Stdout: new(bytes.Buffer), Stderr: &messages,
			Env: func(name string) string { return map[string]string{leaseVar: "lease-one"}[name] },
		}))
		return messages.String()
	}
	const missing = ": connect: no such file or directory\n"
	require.Equal(t, "stepmux: no manager listens at "+socket+": dial unix "+socket+missing, call())
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer listener.Close()
	require.Equal(t, "stepmux: the manager at "+socket+" does not answer\n", call())
}

// The slot stayed taken until the job's timeout: cleanup made one call.
func TestCleanupGivesTheSlotBackToTheNextManager(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "m")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	server := grpc.NewServer()
	manager := &ending{}
	pb.RegisterManagerServer(server, manager)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		require.NoError(t, <-served)
	}()
	var out, messages bytes.Buffer
	code := Main(Call{
		Args: []string{"--manager", socket, "cleanup"}, Stdout: &out, Stderr: &messages,
		Env: func(name string) string { return map[string]string{leaseVar: "lease-one"}[name] },
	})
	require.Zero(t, code, messages.String())
	require.Equal(t, "stepmux: may be left: [\"lease-one\"]\n", messages.String())
	require.EqualValues(t, 2, manager.calls.Load())
}
