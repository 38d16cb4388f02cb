package standalone

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/internal/wire"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// served is a service under test, and the function that ends it.
type served struct {
	pb.StepRunnerClient
	addr   string
	token  string
	cancel context.CancelFunc
	done   chan error
	temp   string
}

func serveLocal(t *testing.T, change func(*ServeConfig)) *served {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &served{token: NewToken(), cancel: cancel, done: make(chan error, 1), temp: t.TempDir()}
	addr := make(chan net.Addr, 1)
	cfg := ServeConfig{
		Token: s.token, WorkBase: t.TempDir(), TempDir: s.temp, Grace: patience,
		Ready: func(a net.Addr) { addr <- a },
	}
	if change != nil {
		change(&cfg)
	}
	go func() { s.done <- Serve(ctx, cfg) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-s.done)
		left, err := os.ReadDir(s.temp)
		require.NoError(t, err)
		require.Empty(t, left)
	})
	select {
	case a := <-addr:
		s.addr = a.String()
	case err := <-s.done:
		s.done <- nil
		require.NoError(t, err)
	}
	conn, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	s.StepRunnerClient = pb.NewStepRunnerClient(conn)
	return s
}

func TestServiceRunsJobsOnlyWithTheToken(t *testing.T) {
	s := serveLocal(t, nil)
	require.True(t, strings.HasPrefix(s.addr, "127.0.0.1:"), s.addr)
	ctx := withToken(t.Context(), s.token)
	_, err := s.Run(ctx, &pb.RunRequest{Id: "a", Type: pb.RunRequest_script, CiScript: "echo hello"})
	require.NoError(t, err)
	stream, err := s.FollowIO(ctx, &pb.FollowIORequest{Id: "a"})
	require.NoError(t, err)
	piece, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, "hello\n", string(piece.GetStream()))
}

func TestServiceRefusesEveryCallWithoutTheToken(t *testing.T) {
	s := serveLocal(t, nil)
	for name, header := range map[string][]string{
		"none":         nil,
		"wrong":        {"Bearer " + NewToken()},
		"empty":        {"Bearer "},
		"beginning":    {"Bearer " + s.token[:len(s.token)-1]},
		"more":         {"Bearer " + s.token + "x"},
		"other scheme": {"Basic " + s.token},
		"bare":         {s.token},
		"two":          {"Bearer " + s.token, "Bearer " + s.token},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := metadata.NewOutgoingContext(t.Context(), metadata.MD{"authorization": header})
			_, err := s.Run(ctx, &pb.RunRequest{Id: "a", Type: pb.RunRequest_script, CiScript: "echo hello"})
			require.Equal(t, codes.Unauthenticated, status.Code(err), "%v", err)
			require.NotContains(t, err.Error(), s.token)
			stream, err := s.Follow(ctx, &pb.FollowRequest{Id: "a"})
			require.NoError(t, err)
			_, err = stream.Recv()
			require.Equal(t, codes.Unauthenticated, status.Code(err), "%v", err)
		})
	}
	jobs, err := s.List(withToken(t.Context(), s.token), &pb.ListRequest{})
	require.NoError(t, err)
	require.Empty(t, jobs.GetJobs())
}

func TestServiceEndsItsJobsWithIt(t *testing.T) {
	s := serveLocal(t, nil)
	ctx := withToken(t.Context(), s.token)
	_, err := s.Run(ctx, &pb.RunRequest{
		Id: "a", Type: pb.RunRequest_script,
		CiScript: "trap 'echo ending; exit' TERM; echo $$; while :; do sleep 0.01; done",
	})
	require.NoError(t, err)
	stream, err := s.FollowIO(ctx, &pb.FollowIORequest{Id: "a"})
	require.NoError(t, err)
	piece, err := stream.Recv()
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(piece.GetStream())))
	require.NoError(t, err)
	s.cancel()
	rest := ""
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		rest += string(piece.GetStream())
	}
	require.Contains(t, rest, "ending\n")
	requireGone(t, pid)
}

func TestServiceEndsThoughAConnectionSaysNothing(t *testing.T) {
	s := serveLocal(t, nil)
	c, err := net.Dial("tcp", s.addr)
	require.NoError(t, err)
	defer c.Close()
	_, err = s.List(withToken(t.Context(), s.token), &pb.ListRequest{}) // the connection before is accepted
	require.NoError(t, err)
	s.cancel()
	require.NoError(t, <-s.done)
	s.done <- nil
}

func TestAnEndBeforeTheFirstCallIsNoError(t *testing.T) {
	for range 50 { // the server may not have begun yet
		ctx, cancel := context.WithCancel(t.Context())
		cfg := ServeConfig{Token: NewToken(), TempDir: t.TempDir(), Ready: func(net.Addr) { cancel() }}
		require.NoError(t, Serve(ctx, cfg))
	}
}

func TestServiceThatCannotListenSaysWhy(t *testing.T) {
	s := serveLocal(t, nil)
	_, port, err := net.SplitHostPort(s.addr)
	require.NoError(t, err)
	n, err := strconv.Atoi(port)
	require.NoError(t, err)
	temp := t.TempDir()
	err = Serve(t.Context(), ServeConfig{Port: n, Token: NewToken(), TempDir: temp})
	require.ErrorContains(t, err, "address already in use; another port may be free, and 0 picks one")
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestTokensThatAreTooShortOrCannotBeSentAreRefused(t *testing.T) {
	require.NoError(t, CheckToken(NewToken()))
	require.NotEqual(t, NewToken(), NewToken())
	require.EqualError(t, CheckToken("secret"), "the token has 6 bytes; it must have at least 16")
	require.EqualError(t, CheckToken("0123456789abcdef\n"), "the token must consist of visible ASCII characters")
	require.Error(t, Serve(t.Context(), ServeConfig{}))
}

// withToken returns ctx for a call of a service that requires token.
func withToken(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, wire.AuthorizationKey, wire.Bearer+token)
}
