package connector

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// recorded is a connection that remembers what is written to it.
type recorded struct {
	net.Conn
	mu     sync.Mutex // guards the following
	writes []string
}

func (r *recorded) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writes = append(r.writes, string(p))
	return r.Conn.Write(p)
}

func (r *recorded) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.writes...)
}

// Each write is a packet of SSH, for which the manager, sshd and the step runner wake up.
func TestAClientSendsItsPrefaceWithItsSettingsAndNoGoodbye(t *testing.T) {
	socket := filepath.Join(sshtest.SocketDir(t), "s")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	server := grpc.NewServer()
	pb.RegisterStepRunnerServer(server, pb.UnimplementedStepRunnerServer{})
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // until Stop
	defer serving.Wait()
	defer server.Stop()

	ended := new(atomic.Bool)
	conns := make(chan *recorded, 1)
	client, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			raw, err := net.Dial("unix", socket)
			if err != nil {
				return nil, err
			}
			r := &recorded{Conn: raw}
			conns <- r
			return &fewWrites{Conn: r, ended: ended}, nil
		}))
	require.NoError(t, err)
	_, err = pb.NewStepRunnerClient(client).List(t.Context(), &pb.ListRequest{})
	require.Equal(t, codes.Unimplemented, status.Code(err), "the server has answered: %v", err)
	conn := <-conns
	before := conn.all()
	first, ok := strings.CutPrefix(before[0], http2.ClientPreface)
	require.True(t, ok)
	require.Equal(t, "\x04", first[3:4], "a frame of settings follows: %q", first)

	ended.Store(true)
	require.NoError(t, client.Close())
	for _, late := range conn.all()[len(before):] {
		require.NotContains(t, late, "client transport", "a frame that says goodbye")
	}
}

func TestAWriteAfterThePrefaceReportsItsOwnBytes(t *testing.T) {
	near, far := net.Pipe()
	c := &fewWrites{Conn: near, ended: new(atomic.Bool)}
	n, err := c.Write([]byte(http2.ClientPreface))
	require.NoError(t, err)
	require.Equal(t, len(http2.ClientPreface), n)
	require.NoError(t, far.Close())
	n, err = c.Write([]byte("settings"))
	require.Error(t, err)
	require.Zero(t, n, "of the write that failed nothing was sent")
	require.NoError(t, near.Close())
}
