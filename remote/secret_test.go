package remote

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// startGuarded runs a serve that wants a secret, and tells it.
func startGuarded(t *testing.T, socket string, change func(*served)) (*served, wire.Secret) {
	t.Helper()
	s := launchServe(t, socket, func(s *served) {
		stdin := s.cmd.Stdin
		s.cmd = remotetest.Role(context.Background(), "guarded", socket)
		s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = stdin, &s.stdout, s.stderr
		if change != nil {
			change(s)
		}
	})
	secret := wire.NewSecret()
	_, err := s.stdin.Write(secret.Line())
	require.NoError(t, err)
	s.waitReady(t)
	return s, secret
}

// connTo returns a gRPC client of a socket.
func connTo(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	client, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	return client
}

// with returns a context whose calls carry these values under the key of the secret.
func with(t *testing.T, authorization ...string) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return metadata.NewOutgoingContext(ctx, metadata.MD{wire.AuthorizationKey: authorization})
}

// callAll calls every method of both services, and one that does not exist, and returns the codes.
func callAll(ctx context.Context, t *testing.T, client *grpc.ClientConn) map[string]codes.Code {
	t.Helper()
	got := map[string]codes.Code{}
	for _, service := range []grpc.ServiceDesc{pb.StepRunner_ServiceDesc, runnerproto.StepRunner_ServiceDesc} {
		for _, m := range service.Methods {
			name := "/" + service.ServiceName + "/" + m.MethodName
			got[name] = status.Code(client.Invoke(ctx, name, &emptypb.Empty{}, &emptypb.Empty{}))
		}
		for _, m := range service.Streams {
			name := "/" + service.ServiceName + "/" + m.StreamName
			stream, err := client.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, name)
			require.NoError(t, err)
			require.NoError(t, stream.SendMsg(&emptypb.Empty{}))
			require.NoError(t, stream.CloseSend())
			got[name] = status.Code(stream.RecvMsg(&emptypb.Empty{}))
		}
	}
	for _, name := range []string{"/stepmux.v1.StepRunner/None", "/grpc.health.v1.Health/Check"} {
		got[name] = status.Code(client.Invoke(ctx, name, &emptypb.Empty{}, &emptypb.Empty{}))
	}
	require.Greater(t, len(got), 10)
	return got
}

func TestEveryCallNeedsTheSecret(t *testing.T) {
	socket := remotetest.SocketIn(t, remotetest.ShortTemp(t), "42")
	s, secret := startGuarded(t, socket, nil)
	client := connTo(t, socket)
	for _, wrong := range [][]string{
		nil, {""}, {"Bearer "}, {wire.NewSecret().Authorization()}, {secret.Authorization(), secret.Authorization()},
	} {
		for method, code := range callAll(with(t, wrong...), t, client) {
			require.Equal(t, codes.Unauthenticated, code, "%s with %q", method, wrong)
		}
	}
	for method, code := range callAll(with(t, secret.Authorization()), t, client) {
		require.NotEqual(t, codes.Unauthenticated, code, method)
	}
	require.NoError(t, s.stdin.Close(), "stdin is the leash afterwards")
	s.requireExit(t, 0, socket)
	require.Equal(t, wire.ReadyLine(socket), s.stderr.String(), "there is nothing to be noted")
}

func TestAllowUnauthenticatedTakesCallsWithoutTheSecretAndNotesIt(t *testing.T) {
	socket := remotetest.SocketIn(t, remotetest.ShortTemp(t), "42")
	s, secret := startGuarded(t, socket, func(s *served) {
		in, out, errOut := s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr
		s.cmd = remotetest.Role(context.Background(), "unguarded", socket)
		s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = in, out, errOut
	})
	for _, authorization := range [][]string{nil, {"Bearer wrong"}, {secret.Authorization()}} {
		for method, code := range callAll(with(t, authorization...), t, connTo(t, socket)) {
			require.NotEqual(t, codes.Unauthenticated, code, method)
		}
	}
	require.NoError(t, s.stdin.Close())
	s.requireExit(t, 0, socket)
	require.Equal(t, greeting(socket), s.stderr.String())
}

func TestALargeMessageWithoutTheSecretIsRefusedUnread(t *testing.T) {
	socket := remotetest.SocketIn(t, remotetest.ShortTemp(t), "42")
	startGuarded(t, socket, nil)
	big := &pb.RunRequest{Id: "1", CiScript: strings.Repeat("x", 60<<20)}
	_, err := pb.NewStepRunnerClient(connTo(t, socket)).Run(with(t), big, grpc.MaxCallSendMsgSize(64<<20))
	require.Equal(t, codes.Unauthenticated, status.Code(err), "%v", err)
}

func TestTheSecretFollowsTheSocketsPathInPiecesOfAnySize(t *testing.T) {
	for name, cut := range map[string]int{"at once": 1 << 10, "in pieces": 1, "by line": 0} {
		t.Run(name, func(t *testing.T) {
			socket := remotetest.SocketIn(t, remotetest.ShortTemp(t), "42")
			s := launchServe(t, socket, func(s *served) {
				in, out, errOut := s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr
				s.cmd = remotetest.Role(context.Background(), "guarded", SocketOnStdin)
				s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = in, out, errOut
			})
			secret := wire.NewSecret()
			pieces := [][]byte{[]byte(socket + "\n"), append(secret.Line(), "more, which nobody wants"...)}
			if cut > 0 {
				pieces = chunksOf(bytes.Join(pieces, nil), cut)
			}
			for _, piece := range pieces {
				_, err := s.stdin.Write(piece)
				require.NoError(t, err)
			}
			s.waitReady(t)
			for _, code := range callAll(with(t, secret.Authorization()), t, connTo(t, socket)) {
				require.NotEqual(t, codes.Unauthenticated, code)
			}
			require.NoError(t, s.stdin.Close())
			s.requireExit(t, 0, socket)
		})
	}
}

// chunksOf cuts b into pieces of n bytes.
func chunksOf(b []byte, n int) (pieces [][]byte) {
	for len(b) > 0 {
		piece := b[:min(n, len(b))]
		pieces, b = append(pieces, piece), b[len(piece):]
	}
	return pieces
}

func TestServeMakesNoFileBeforeItHasItsSecret(t *testing.T) {
	for name, test := range map[string]struct{ sent, want string }{
		"nothing":          {"", "stdin ended before the secret came"},
		"half a line":      {wire.NewSecret().Authorization()[7:30], "unexpected EOF"},
		"an empty line":    {"\n", "a secret has 43 to 128 characters, this has 0"},
		"too short":        {"private-but-short\n", "a secret has 43 to 128 characters, this has 17"},
		"without end":      {strings.Repeat("private", 100), "has more than 128 characters"},
		"too long":         {strings.Repeat("private", 20) + "\n", "has more than 128 characters"},
		"other characters": {strings.Repeat("private ", 6) + "\n", "a secret consists of base64url characters"},
		"binary":           {strings.Repeat("private\x00", 6) + "\n", "a secret consists of base64url characters"},
	} {
		t.Run(name, func(t *testing.T) {
			tmp := remotetest.ShortTemp(t)
			cmd := remotetest.Role(t.Context(), "guarded", remotetest.SocketIn(t, tmp, "42"))
			cmd.Stdin = strings.NewReader(test.sent)
			out, err := cmd.CombinedOutput()
			require.Error(t, err)
			require.Equal(t, 1, cmd.ProcessState.ExitCode())
			require.Contains(t, string(out), "serve: read the secret from stdin: ")
			require.Contains(t, string(out), test.want)
			require.NotContains(t, string(out), "is listening")
			require.NotContains(t, string(out), "private", "what was sent may be a secret")
			require.Empty(t, remotetest.Names(t, tmp))
		})
	}
	t.Run("no stdin", func(t *testing.T) {
		tmp := remotetest.ShortTemp(t)
		out, err := remotetest.Role(t.Context(), "guarded", remotetest.SocketIn(t, tmp, "42")).CombinedOutput() // /dev/null
		require.Error(t, err)
		require.Contains(t, string(out), "stdin ended before the secret came")
		require.Empty(t, remotetest.Names(t, tmp))
	})
}

// spyRole tries every way to look into process pid, and prints those that work.
func spyRole(pid string) error {
	for _, name := range []string{"environ", "mem", "maps", "auxv", "fd/0", "fd/1", "fd/2", "cwd", "exe"} {
		path := filepath.Join("/proc", pid, name)
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		_ = f.Close()
		os.Stdout.WriteString(name + "\n")
	}
	n, err := strconv.Atoi(pid)
	if err != nil {
		return err
	}
	if unix.PtraceSeize(n) == nil { // ends with this process
		os.Stdout.WriteString("ptrace\n")
	}
	if fd, err := unix.PidfdOpen(n, 0); err == nil {
		if _, err := unix.PidfdGetfd(fd, 0, 0); err == nil {
			os.Stdout.WriteString("pidfd_getfd\n")
		}
	}
	return nil
}

func TestAProcessOfTheSameUserCannotLookIntoTheVMsEnd(t *testing.T) {
	remotetest.NeedRoot(t)
	spyOn := func(pid int) string {
		out, err := remotetest.AsNobody(t, remotetest.Role(t.Context(), "spy", strconv.Itoa(pid))).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	// pipes returns the ends of a process's stdin and output that are ours.
	pipes := func(cmd *exec.Cmd) (io.WriteCloser, io.Reader) {
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			in.Close()
			cmd.Wait()
		})
		return in, out
	}

	dir := remotetest.ShortTemp(t)
	require.NoError(t, os.Chmod(dir, 0o777))
	open := remotetest.AsNobody(t, remotetest.Role(t.Context(), "listen", filepath.Join(dir, "s")))
	_, says := pipes(open)
	_, err := io.ReadFull(says, make([]byte, len("up")))
	require.NoError(t, err)
	require.Contains(t, spyOn(open.Process.Pid), "environ\nmem\n", "the spy is one")

	tmp := remotetest.ShortTemp(t)
	require.NoError(t, os.Chmod(tmp, 0o777|os.ModeSticky))
	socket := remotetest.SocketIn(t, tmp, "42")
	s, secret := startGuarded(t, socket, func(s *served) {
		theirs := remotetest.AsNobody(t, remotetest.Role(t.Context(), "guarded", socket))
		theirs.Stdin, theirs.Stdout, theirs.Stderr = s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr
		s.cmd = theirs
	})
	require.Empty(t, spyOn(s.cmd.Process.Pid))

	bridge := remotetest.AsNobody(t, remotetest.Role(t.Context(), "proxy", socket))
	_, says = pipes(bridge)
	_, err = says.Read(make([]byte, 1)) // the server's settings: the bridge stands
	require.NoError(t, err)
	require.Empty(t, spyOn(bridge.Process.Pid))

	relay := remotetest.AsNobody(t, remotetest.Role(t.Context(), "relay", tmp, "1s"))
	in, says := pipes(relay)
	_, err = in.Write([]byte("stepmux-manager/1\n"))
	require.NoError(t, err)
	_, err = says.Read(make([]byte, 1))
	require.NoError(t, err)
	require.Empty(t, spyOn(relay.Process.Pid))

	// Everything works for an ordinary user too, to whom not even all of its own /proc belongs any more.
	runner := pb.NewStepRunnerClient(connTo(t, socket))
	ctx := with(t, secret.Authorization())
	_, err = runner.Run(
		ctx,
		&pb.RunRequest{Id: "1", Type: pb.RunRequest_script, CiScript: "id -u; cat /proc/self/environ; sleep 600 & exit 7"},
	)
	require.NoError(t, err)
	follow, err := runner.Follow(ctx, &pb.FollowRequest{Id: "1"})
	require.NoError(t, err)
	var last *pb.FollowResponse
	for {
		msg, err := follow.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		last = msg
	}
	require.EqualValues(t, 7, last.GetJob().GetExitCode())
	require.NoError(t, s.stdin.Close())
	s.requireExit(t, 0, socket)
}
