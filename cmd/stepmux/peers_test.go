package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/instance/control"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/testing/racefree"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// saying serves connections by a function, until the test ends.
func saying(serve func(net.Conn)) func(*testing.T, net.Listener) {
	return func(t *testing.T, listener net.Listener) {
		served := make(chan struct{})
		go func() {
			defer close(served)
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				serve(conn)
				conn.Close()
			}
		}()
		t.Cleanup(func() {
			listener.Close()
			<-served
		})
	}
}

// answering serves gRPC with this answer to Status.
func answering(json string, err error) func(*testing.T, net.Listener) {
	return serving(control.NewServer(statusService{json: json, err: err}, grpc.MaxSendMsgSize(2*pb.MaxAnswer)))
}

func serving(server *grpc.Server) func(*testing.T, net.Listener) {
	return func(t *testing.T, listener net.Listener) {
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(server.Stop)
	}
}

type statusService struct {
	pb.UnimplementedManagerServer
	json string
	err  error
}

func (s statusService) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	return &pb.StatusResponse{Json: []byte(s.json)}, s.err
}

// Symptom: a grpc error, in part without the socket, after up to a minute.
func TestEveryCommandOfAManagerNamesOneThatIsStopped(t *testing.T) {
	path := filepath.Join(sshtest.SocketDir(t), "c.sock")
	listener, err := net.Listen("unix", path) // a stopped process has a socket and accepts nothing
	require.NoError(t, err)
	defer listener.Close()
	script := filepath.Join(t.TempDir(), "x.sh")
	require.NoError(t, os.WriteFile(script, []byte("set -e\n"), 0o600))
	for _, args := range [][]string{
		{"ps"},
		{"builds"},
		{"cancel", "b"},
		{"logs", "b"},
		{"drain", "vm"},
		{"artifacts", "b", t.TempDir()},
		{"submit", script},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // in place of probeTimeout
		root := newRoot()
		root.SetArgs(append(args, "--manager", path))
		err := root.ExecuteContext(ctx)
		cancel()
		require.ErrorContains(t, err, "the manager at "+path+" does not answer within", args)
	}
}

// oldRun answers as a stepmux run did that spoke HTTP to ps, drain and undrain.
func oldRun(t *testing.T, listener net.Listener) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") })
	mux.HandleFunc("POST /v1/instances/{id}/drain", func(http.ResponseWriter, *http.Request) {})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: bound}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
}

//stepmux:faults users | A command meets a server of another protocol or version on a socket, and says only that the
//stepmux:more connection failed
//stepmux:with instance/control.TestClientsOfAnotherProtocolAreRefused, instance/control.TestARunSaysThatItIsNoManager
func TestASocketOfSomethingElseIsAnErrorThatSaysSo(t *testing.T) {
	for name, test := range map[string]struct {
		serve func(*testing.T, net.Listener)
		want  string
	}{
		"a run of an older version": {oldRun, "the process there speaks HTTP/1.1, as a stepmux run of an older version does"},
		"one that closes first": {saying(func(c net.Conn) {
			_, _ = io.ReadFull(c, make([]byte, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")))
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
		}), "the process there speaks HTTP/1.1, as a stepmux run of an older version does"},
		"a greeting":             {saying(func(c net.Conn) { _, _ = io.WriteString(c, "220 hi\x1b[2J\r\n") }), "ask "},
		"a server that hangs up": {saying(func(net.Conn) {}), "(only the user that started it, and root, may)"},
		"a server that is silent": {
			saying(func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }), "does not answer within 10s: is its process stopped",
		},
		"another gRPC service": {serving(grpc.NewServer()), "unknown service stepmux.manager.v1.Manager"},
		"an answer of no JSON": {answering("{]", nil), "read the status: the answer is not valid: "},
		"an answer of JSON":    {answering(`{"instances": 7}`, nil), "read the status: the answer is not valid: "},
		"a large answer":       {answering(strings.Repeat(" ", pb.MaxAnswer+1), nil), "larger than max"},
		"a hostile error":      {answering("", status.Error(codes.Unavailable, hostile)), "FORGED"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "a large answer" {
				racefree.Only(t) // else it may not arrive within controlTimeout
			}
			t.Parallel()
			path := filepath.Join(sshtest.SocketDir(t), "c.sock")
			listener, err := net.Listen("unix", path)
			require.NoError(t, err)
			test.serve(t, listener)
			for _, flag := range []string{"--control", "--manager"} {
				ctx, cancel := context.WithTimeout(t.Context(), bound)
				if strings.Contains(test.want, "does not answer") {
					ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond) // in place of probeTimeout
				}
				root := newRoot()
				root.SetArgs([]string{"ps", flag, path})
				err := root.ExecuteContext(ctx)
				cancel()
				coded := &exitError{}
				require.ErrorAs(t, err, &coded)
				require.Equal(t, exitSystem, coded.code)
				if flag == "--control" || !strings.Contains(test.want, "only the user") {
					require.ErrorContains(t, err, test.want)
				}
				var shown bytes.Buffer
				showError(&shown, coded.err)
				require.Less(t, shown.Len(), 8<<10)
				require.Equal(t, -1, strings.IndexFunc(shown.String(), func(c rune) bool {
					return c != '\n' && !unicode.IsPrint(c)
				}), "%.200q", shown.String())
			}
		})
	}
}
