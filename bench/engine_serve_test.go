package bench

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/internal/wire"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// trivial is the script of a job that does next to nothing.
const trivial = "echo hi"

// serve is a step runner, a process of its own, and a client on its socket.
type serve struct {
	pb.StepRunnerClient
	pid    int
	socket string

	mu sync.Mutex // guards the following
	n  int        // of the last job
}

// newServe starts a step runner that lives as long as the benchmark.
func newServe(b *testing.B) *serve {
	b.Helper()
	return newServeIn(b, sshtest.SocketDir(b))
}

// newServeIn starts one whose socket lies as a build's below a directory for temporary files.
func newServeIn(b *testing.B, dir string) *serve {
	b.Helper()
	return newServeOf(b, dir, func(socket string) *exec.Cmd {
		return exec.CommandContext(context.WithoutCancel(b.Context()), stepmux(b), "steps", "serve", "--socket", socket)
	})
}

// newServeOf starts one by a command. Its leash ends the command, when the context of the benchmark has ended already.
func newServeOf(b *testing.B, dir string, command func(socket string) *exec.Cmd) *serve {
	b.Helper()
	socket, err := wire.SocketPath(dir, wire.BuildID(rand.Text()))
	require.NoError(b, err)
	cmd := command(socket)
	leash, err := cmd.StdinPipe()
	require.NoError(b, err)
	stderr, err := cmd.StderrPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	line, err := bufio.NewReader(stderr).ReadString('\n')
	require.NoError(b, err)
	require.Equal(b, wire.ReadyLine(socket), line)
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(b, err)
	b.Cleanup(func() {
		require.NoError(b, conn.Close())
		require.NoError(b, leash.Close())
		require.NoError(b, cmd.Wait())
	})
	return &serve{StepRunnerClient: pb.NewStepRunnerClient(conn), pid: cmd.Process.Pid, socket: socket}
}

// start starts a script as a job, and returns its id.
func (s *serve) start(ctx context.Context, script string) (id string, err error) {
	return s.submit(ctx, &pb.RunRequest{Type: pb.RunRequest_script, CiScript: script})
}

// submit starts a job, and returns the id that it gives it.
func (s *serve) submit(ctx context.Context, request *pb.RunRequest) (id string, err error) {
	s.mu.Lock()
	s.n++
	id = strconv.Itoa(s.n)
	s.mu.Unlock()
	request.Id = id
	_, err = s.Run(ctx, request)
	return id, err
}

// read follows the output of a job, for want bytes or, if that is 0, to the job's end. It returns how many
// bytes there were.
func (s *serve) read(ctx context.Context, id string, want int64) (n int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.FollowIO(ctx, &pb.FollowIORequest{Id: id})
	for err == nil && (want == 0 || n < want) {
		var piece *pb.FollowIOResponse
		if piece, err = stream.Recv(); err == nil {
			n += int64(len(piece.GetStream()))
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// do runs a script to its end, which must have written so many bytes.
func (s *serve) do(ctx context.Context, script string, want int64) error {
	id, err := s.start(ctx, script)
	if err != nil {
		return err
	}
	return s.readAll(ctx, id, want)
}

// readAll follows the output of a job to its end, which must be of that size.
func (s *serve) readAll(ctx context.Context, id string, size int64) error {
	n, err := s.read(ctx, id, 0)
	if err == nil && n != size {
		err = fmt.Errorf("job %s wrote %d bytes, not %d", id, n, size)
	}
	return err
}

// forget ends a job and then removes it.
func (s *serve) forget(ctx context.Context, id string) error {
	for range 2 {
		if _, err := s.Cancel(ctx, &pb.CancelRequest{Id: id, Force: true}); err != nil {
			return err
		}
		if _, err := s.read(ctx, id, 0); err != nil {
			return nil //nolint:nilerr // it was removed already
		}
	}
	return nil
}

// fork runs a script as a child of this process, which must write so many bytes.
func fork(ctx context.Context, script string, want int64) error {
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	n, err := io.Copy(struct{ io.Writer }{io.Discard}, out)
	if waitErr := cmd.Wait(); err == nil {
		err = waitErr
	}
	if err == nil && n != want {
		err = fmt.Errorf("%s wrote %d bytes, not %d", script, n, want)
	}
	return err
}
