package bench

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// BenchmarkBuildStart measures the start of a build on a VM that is known, to its step runner's first answer:
// by each route over the connection there is, and the way of those who dial for each build. Over a distance
// it counts round trips.
func BenchmarkBuildStart(b *testing.B) {
	for _, rtt := range []time.Duration{0, 100 * time.Millisecond} {
		b.Run("rtt="+rtt.String(), func(b *testing.B) {
			v := newVM(b).at(b, rtt)
			all := []candidate{
				v.buildBy(b, connector.Relay),
				v.buildBy(b, connector.Auto),
				v.buildBy(b, connector.Streamlocal),
				v.buildBy(b, connector.Session),
				{name: "fresh-dial", every: 3, run: func(r *results) error { return buildFresh(r, "fresh-dial", v) }},
			}
			if rtt == 0 {
				all = append(all, v.buildPeers(b)...)
			}
			r := inTurns(b, all)
			if rtt > 0 {
				r.trips(rtt, names(all)...)
				return
			}
			r.latencies("µs", names(all)...)
			r.ratios("fresh-dial", names(all)...)
		})
	}
}

// lease is a share of a connection that stays open.
type lease struct{ conn *mux.Conn }

func (l lease) Conn() *mux.Conn { return l.conn }
func (l lease) Release()        {}

// build is a build whose step runner has answered.
type build struct {
	connector *connector.Connector
	client    *grpc.ClientConn
}

// startBuild starts a build. known is what is known of the VM.
func (v *vm) startBuild(b *testing.B, conn *mux.Conn, known *connector.VM, route connector.Route) (*build, error) {
	c, err := connector.New(connector.Config{
		Lease:   lease{conn},
		VM:      known,
		BuildID: rand.Text(),
		Runner:  []string{stepmux(b)},
		TempDir: v.tmp,
		Route:   route,
	})
	if err != nil {
		return nil, err
	}
	started := &build{connector: c}
	dial, err := c.Connect(b.Context())
	if err == nil {
		started.client, err = firstCall(b.Context(), dial, grpc.WithPerRPCCredentials(c.Credentials()))
	}
	if err != nil {
		_ = started.close(b.Context()) // the first error tells
		return nil, err
	}
	return started, nil
}

func (s *build) close(ctx context.Context) error {
	if s.client != nil {
		s.client.Close()
	}
	return s.connector.Close(ctx)
}

// buildBy measures the start of a build by a route.
func (v *vm) buildBy(b *testing.B, route connector.Route) candidate {
	b.Helper()
	stepmux(b) // built before it is measured
	conn, known, name := v.dial(b), new(connector.VM), string(route)
	return candidate{name: name, run: func(r *results) error {
		begin := time.Now()
		started, err := v.startBuild(b, conn, known, route)
		if err != nil {
			return err
		}
		r.add(name, micros(time.Since(begin)))
		return started.close(b.Context())
	}}
}

// buildFresh measures the start of a build as those do it who share nothing: a connection for the build,
// a session that serves, and when it says that it listens, another as the bridge.
func buildFresh(r *results, name string, v *vm) error {
	socket, err := wire.SocketPath(v.tmp, wire.BuildID(rand.Text()))
	if err != nil {
		return err
	}
	begin := time.Now()
	client, err := ssh.Dial("tcp", v.Addr, v.ClientConfig())
	if err != nil {
		return err
	}
	defer client.Close()
	serve, err := startFreshServe(client, stepmux(r.b), socket)
	if err != nil {
		return err
	}
	rpc, err := firstCall(r.b.Context(), func() (io.ReadWriteCloser, error) { return freshProxy(client, stepmux(r.b), socket) })
	if err != nil {
		return err
	}
	r.add(name, micros(time.Since(begin)))
	rpc.Close()
	serve.leash.Close()
	return serve.session.Wait()
}

type freshServe struct {
	session *ssh.Session
	leash   io.WriteCloser
}

// startFreshServe starts serve and waits for its marker.
func startFreshServe(client *ssh.Client, program, socket string) (*freshServe, error) {
	session, err := client.NewSession()
	if err != nil {
		return nil, err
	}
	leash, err := session.StdinPipe()
	if err != nil {
		return nil, err
	}
	stderr, err := session.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := session.Start(program + " steps serve --socket " + socket); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(stderr).ReadString('\n')
	if err == nil && line != wire.ReadyLine(socket) {
		err = fmt.Errorf("serve says %q", line)
	}
	return &freshServe{session, leash}, err
}

// freshBridge is a proxy's standard input and output.
type freshBridge struct {
	io.Reader
	io.WriteCloser
}

func freshProxy(client *ssh.Client, program, socket string) (io.ReadWriteCloser, error) {
	session, err := client.NewSession()
	if err != nil {
		return nil, err
	}
	in, err := session.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := session.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return freshBridge{out, in}, session.Start(program + " steps proxy --socket " + socket)
}

// buildPeers measures the start of a build on the VM itself, without any SSH, which nothing can beat, and by
// OpenSSH's own client over the connection of its master.
func (v *vm) buildPeers(b *testing.B) []candidate {
	b.Helper()
	commands := func(name string, wrap func(argv []string) []string) candidate {
		return candidate{name: name, run: func(r *results) error { return buildByCommands(r, name, v, wrap) }}
	}
	all := []candidate{commands("local", nil)}
	client, err := newOpenSSHClient(b, v)
	if err != nil {
		missing(b, "control-master", err)
		return all
	}
	return append(all, commands("control-master", client.shared))
}

// buildByCommands measures the start of a build by two commands of this machine, serve and proxy, or, if wrap is
// nil, by serve and its socket itself.
func buildByCommands(r *results, name string, v *vm, wrap func(argv []string) []string) error {
	socket, err := wire.SocketPath(v.tmp, wire.BuildID(rand.Text()))
	if err != nil {
		return err
	}
	serve := []string{stepmux(r.b), "steps", "serve", "--socket", socket}
	dial := func() (io.ReadWriteCloser, error) { return net.Dial("unix", socket) }
	if wrap != nil {
		serve = wrap(serve)
		proxy := wrap([]string{stepmux(r.b), "steps", "proxy", "--socket", socket})
		dial = func() (io.ReadWriteCloser, error) { return startCommandStream(r.b.Context(), proxy) }
	}
	cmd := exec.CommandContext(r.b.Context(), serve[0], serve[1:]...)
	leash, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	if line, err := bufio.NewReader(stderr).ReadString('\n'); err != nil || line != wire.ReadyLine(socket) {
		return fmt.Errorf("serve says %q: %w", line, err)
	}
	rpc, err := firstCall(r.b.Context(), dial)
	if err != nil {
		return err
	}
	r.add(name, micros(time.Since(begin)))
	rpc.Close()
	leash.Close()
	return cmd.Wait()
}

// commandStream is a command's standard input and output.
type commandStream struct {
	io.Reader
	io.WriteCloser
	cmd *exec.Cmd
}

func startCommandStream(ctx context.Context, argv []string) (*commandStream, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &commandStream{out, in, cmd}, cmd.Start()
}

// Close ends the command's input and waits for its end.
func (s *commandStream) Close() error {
	return errors.Join(s.WriteCloser.Close(), s.cmd.Wait())
}

// firstCall makes the first call of a step runner.
func firstCall(ctx context.Context, dial func() (io.ReadWriteCloser, error), more ...grpc.DialOption) (*grpc.ClientConn, error) {
	client, err := grpc.NewClient("passthrough:///step-runner", append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithReadBufferSize(16 << 10), // as the connector's own
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			bridge, err := dial()
			if err != nil {
				return nil, err
			}
			return netConn{bridge}, nil
		}),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
	}, more...)...)
	if err != nil {
		return nil, err
	}
	if _, err := pb.NewStepRunnerClient(client).List(ctx, &pb.ListRequest{}); err != nil {
		client.Close()
		return nil, err
	}
	return client, nil
}

// netConn is a bridge as gRPC wants it.
type netConn struct{ io.ReadWriteCloser }

func (netConn) LocalAddr() net.Addr              { return &net.UnixAddr{} }
func (netConn) RemoteAddr() net.Addr             { return &net.UnixAddr{} }
func (netConn) SetDeadline(time.Time) error      { return nil }
func (netConn) SetReadDeadline(time.Time) error  { return nil }
func (netConn) SetWriteDeadline(time.Time) error { return nil }
