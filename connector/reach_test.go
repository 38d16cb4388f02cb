package connector

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/internal/contents"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/reach"
)

const token = "a-token-of-the-job"

// noStore is for a step runner that keeps no files.
func noStore() *contents.Store { return nil }

// reachingServer is a step runner whose job calls its services.
type reachingServer struct {
	endedJob
	*reach.Server
	job func(url string) // runs while the job does

	asked *pb.RunRequest
}

func (s *reachingServer) Run(_ context.Context, req *pb.RunRequest) (*pb.RunResponse, error) {
	s.asked = req
	return &pb.RunResponse{}, nil
}

func (s *reachingServer) Follow(req *pb.FollowRequest, stream grpc.ServerStreamingServer[pb.FollowResponse]) error {
	s.job(s.asked.GetJob().GetServices().GetUrl())
	return s.endedJob.Follow(req, stream)
}

// always returns services without an end.
func always(s *Services) func() (*Services, func(), error) {
	return func() (*Services, func(), error) { return s, func() {}, nil }
}

// handed is a listener for the connections that Services.Take gets.
type handed struct {
	conns chan net.Conn
	done  chan struct{}
}

func (l handed) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l handed) take(conn net.Conn) {
	select {
	case l.conns <- conn:
	case <-l.done:
		conn.Close()
	}
}

func (handed) Addr() net.Addr { return &net.UnixAddr{} }

func (l handed) Close() error { return nil }

// serveHTTP returns services that answer by HTTP until the test ends.
func serveHTTP(t *testing.T, handler http.HandlerFunc) *Services {
	l := handed{make(chan net.Conn), make(chan struct{})}
	server := &http.Server{Handler: handler} //nolint:gosec // its clients are those of the test
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() {
		close(l.done)
		_ = server.Close()
		serving.Wait()
	})
	return &Services{Token: token, Take: l.take}
}

// executeReaching executes a job that calls its services.
func executeReaching(t *testing.T, services *Services, job func(url string)) {
	t.Helper()
	s := &reachingServer{Server: reach.New("", noStore), job: job}
	s.last = &pb.JobState{Status: pb.JobState_suceeded} //nolint:misspell // the published spelling
	c := connectTo(t, s)
	defer s.Close()
	ended := 0
	register := func() (*Services, func(), error) { return services, func() { ended++ }, nil }
	result, err := c.Execute(sshtest.Within(t), Job{Job: &pb.Job{Script: "true"}, Services: register}, io.Discard)
	require.Equal(t, 1, ended)
	require.NoError(t, err)
	require.Equal(t, Succeeded, result.Status)
	require.Equal(t, token, s.asked.GetJob().GetServices().GetToken())
}

func TestAJobReachesItsServices(t *testing.T) {
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	services := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(w, r.Host+" "+string(text))
	})
	const large = 4 << 20
	executeReaching(t, services, func(url string) {
		var calls sync.WaitGroup
		for range 2 * reach.MaxConns { // half of them wait for the others
			calls.Go(func() {
				text := strings.Repeat("x", large/reach.MaxConns)
				resp, err := client.Post(url, "text/plain", strings.NewReader(text)) //nolint:noctx // bounded by the job
				if err != nil {
					t.Error(err)
					return
				}
				defer resp.Body.Close()
				answer, err := io.ReadAll(resp.Body)
				if err != nil || string(answer) != strings.TrimPrefix(url, "http://")+" "+text {
					t.Errorf("%d bytes, %v", len(answer), err)
				}
			})
		}
		calls.Wait()
		client.CloseIdleConnections()
	})
}

// A service that answers and closes before it has read all gets its answer to the job.
func TestAServiceMayCloseEarly(t *testing.T) {
	services := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusForbidden)
	})
	executeReaching(t, services, func(url string) {
		client := &http.Client{Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		resp, err := client.Post(url, "text/plain", strings.NewReader("text")) //nolint:noctx // bounded by the job
		if err != nil {
			t.Error(err)
			return
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("status %d", resp.StatusCode)
		}
	})
}

// breakingServer ends the first Listen as a broken link does, once cut is closed. The second one closes again.
type breakingServer struct {
	reachingServer
	cut, again chan struct{}
	listen     atomic.Int32
}

type cutStream struct {
	grpc.ServerStreamingServer[pb.ListenResponse]
	ctx context.Context
}

func (s cutStream) Context() context.Context { return s.ctx }

func (s *breakingServer) Listen(req *pb.ListenRequest, stream grpc.ServerStreamingServer[pb.ListenResponse]) error {
	if s.listen.Add(1) > 1 {
		close(s.again)
		return s.Server.Listen(req, stream)
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	waiting.Go(func() {
		select {
		case <-s.cut:
			cancel()
		case <-ctx.Done():
		}
	})
	_ = s.Server.Listen(req, cutStream{stream, ctx})
	return status.Error(codes.Unavailable, "the link broke")
}

func TestThePortStaysWhenTheLinkBreaks(t *testing.T) {
	services := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") })
	s := &breakingServer{cut: make(chan struct{}), again: make(chan struct{})}
	s.Server = reach.New("", noStore)
	s.last = &pb.JobState{Status: pb.JobState_suceeded} //nolint:misspell // the published spelling
	defer s.Close()
	s.job = func(url string) {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		for n := range 3 {
			resp, err := client.Get(url) //nolint:noctx // bounded by the job
			if err != nil {
				t.Error(err)
				return
			}
			text, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || string(text) != "here" {
				t.Errorf("%q, %v", text, err)
			}
			switch n {
			case 0:
				close(s.cut) // the second connection may come before the second Listen
			case 1:
				<-s.again
			}
		}
	}
	job := Job{Job: &pb.Job{Script: "true"}, Services: always(services)}
	_, err := connectTo(t, s).Execute(sshtest.Within(t), job, io.Discard)
	require.NoError(t, err)
}

// announcing announces connections without end.
type announcing struct {
	pb.UnimplementedReachServer
	endedJob
}

func (*announcing) Listen(_ *pb.ListenRequest, stream grpc.ServerStreamingServer[pb.ListenResponse]) error {
	for n := range int64(1 << 40) {
		if err := stream.Send(&pb.ListenResponse{Address: "127.0.0.1:1", Connection: n}); err != nil {
			return err
		}
	}
	return nil
}

func (*announcing) Carry(stream grpc.BidiStreamingServer[pb.CarryRequest, pb.CarryResponse]) error {
	<-stream.Context().Done()
	return nil
}

func TestAHostileStepRunnerOpensNoMoreThanTheBound(t *testing.T) {
	s := &announcing{}
	s.last = &pb.JobState{Status: pb.JobState_suceeded} //nolint:misspell // the published spelling
	var mu sync.Mutex
	open, most := 0, 0
	services := &Services{Token: token, Take: func(conn net.Conn) {
		mu.Lock()
		open++
		most = max(most, open)
		mu.Unlock()
		_, _ = io.Copy(io.Discard, conn)
		conn.Close()
	}}
	job := Job{Job: &pb.Job{Script: "true"}, Services: always(services)}
	_, err := connectTo(t, s).Execute(sshtest.Within(t), job, io.Discard)
	require.NoError(t, err)
	require.LessOrEqual(t, most, maxCarried)
}

func TestAnOlderStepRunnerHasNoServices(t *testing.T) {
	s := &endedJob{}
	services := &Services{Token: token, Take: func(conn net.Conn) { conn.Close() }}
	job := Job{Job: &pb.Job{Script: "true"}, Services: always(services)}
	_, err := connectTo(t, s).Execute(sshtest.Within(t), job, io.Discard)
	require.ErrorAs(t, err, new(*RequestError))
	require.ErrorContains(t, err, "too old for the services of actions: install this version there")
}
