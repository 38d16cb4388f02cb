// A stand-in for the gitlab-runner program on a VM, for tests: the Go module proxy does not have the real one. It does
// only the things that GitLab Runner's manager expects:
//
//   - `--version` prints lines with Version and OS/Arch;
//   - `steps serve --socket PATH` listens in an existing directory, prints the ready marker on stderr and serves only
//     proto.StepRunner. It ignores its stdin. SIGTERM ends it at once, and it leaves its socket and its jobs' processes
//     behind;
//   - `steps proxy --socket PATH` joins stdin and stdout to it;
//   - there is no `steps relay`.
//
// The words "deaf" (ignores SIGTERM) and "old" (has no Cancel) before these change it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
	"github.com/stepmux/stepmux/remote/job"
	"github.com/stepmux/stepmux/remote/job/service"
	"github.com/stepmux/stepmux/remote/proc"
)

func main() {
	proc.Main() // it is also the init of the processes it starts
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "FATAL:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	var deaf, old bool
	for len(args) > 0 && (args[0] == "deaf" || args[0] == "old") {
		deaf, old = deaf || args[0] == "deaf", old || args[0] == "old"
		args = args[1:]
	}
	switch {
	case slices.Equal(args, []string{"--version"}):
		_, err := fmt.Printf( //nolint:forbidigo // a program
			"Version:      17.11.0\nGit revision: 0f67ff19\nGit branch:   17-11-stable\nGO version:   %s\n"+
				"Built:        2025-04-17T11:07:36Z\nOS/Arch:      %s/%s\n",
			runtime.Version(),
			runtime.GOOS,
			runtime.GOARCH,
		)
		return err
	case len(args) == 4 && slices.Equal(args[:3], []string{"steps", "serve", "--socket"}):
		return serve(args[3], deaf, old)
	case len(args) == 4 && slices.Equal(args[:3], []string{"steps", "proxy", "--socket"}):
		return proxy(args[3])
	default:
		return fmt.Errorf("no help topic for %q", args)
	}
}

func serve(socket string, deaf, old bool) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	store, err := job.New(job.Config{Dir: filepath.Dir(socket)})
	if err != nil {
		return err
	}
	inner := service.NewServer(store)
	pipe := bufconn.Listen(64 << 10)
	go func() { _ = inner.Serve(pipe) }()
	conn, err := grpc.NewClient("passthrough:inner",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) }))
	if err != nil {
		return err
	}
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	runnerproto.RegisterStepRunnerServer(server, &front{inner: runnerproto.NewStepRunnerClient(conn), old: old})
	fmt.Fprint(os.Stderr, wire.ReadyLine(socket))
	go func() {
		for range signals {
			if !deaf {
				os.Exit(143)
			}
		}
	}()
	return server.Serve(ln)
}

// front offers only proto.StepRunner of our step runner's services.
type front struct {
	runnerproto.UnimplementedStepRunnerServer
	inner runnerproto.StepRunnerClient
	old   bool
}

// Run implements runnerproto.StepRunnerServer, as do the others. Like the real program it refuses steps with an error
// that has no code and quotes them all.
func (f *front) Run(ctx context.Context, req *runnerproto.RunRequest) (*runnerproto.RunResponse, error) {
	resp, err := f.inner.Run(ctx, req)
	if status.Code(err) == codes.InvalidArgument {
		err = fmt.Errorf("loading step: reading steps %q: %s", req.GetSteps(), status.Convert(err).Message())
	}
	return resp, err
}

// Status passes the call on.
func (f *front) Status(ctx context.Context, req *runnerproto.StatusRequest) (*runnerproto.StatusResponse, error) {
	return f.inner.Status(ctx, req)
}

// Close passes the call on.
func (f *front) Close(ctx context.Context, req *runnerproto.CloseRequest) (*runnerproto.CloseResponse, error) {
	return f.inner.Close(ctx, req)
}

// Cancel passes the call on, unless the program is an old one without it.
func (f *front) Cancel(ctx context.Context, req *runnerproto.CancelRequest) (*runnerproto.CancelResponse, error) {
	if f.old {
		return f.UnimplementedStepRunnerServer.Cancel(ctx, req)
	}
	return f.inner.Cancel(ctx, req)
}

// FollowLogs passes the stream on.
func (f *front) FollowLogs(
	req *runnerproto.FollowLogsRequest, to grpc.ServerStreamingServer[runnerproto.FollowLogsResponse],
) error {
	from, err := f.inner.FollowLogs(to.Context(), req)
	if err != nil {
		return err
	}
	for {
		msg, err := from.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := to.Send(msg); err != nil {
			return err
		}
	}
}

func proxy(socket string) error {
	conn, err := (&net.Dialer{}).DialContext(context.Background(), "unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	ended := make(chan struct{}, 2)
	for _, pair := range []struct {
		to   io.Writer
		from io.Reader
	}{{conn, os.Stdin}, {os.Stdout, conn}} {
		go func() {
			_, _ = io.Copy(struct{ io.Writer }{pair.to}, struct{ io.Reader }{pair.from})
			ended <- struct{}{}
		}()
	}
	<-ended
	return nil
}
