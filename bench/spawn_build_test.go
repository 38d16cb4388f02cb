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
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// benchmarkWarm measures the start of a build on a VM that is known, to its step runner's first answer, so many at
// once: by each route over a shared connection, with a dial for each build, and on the VM itself.
func benchmarkWarm(b *testing.B, n int) {
	v := newVM(b)
	all := at(b, n, append(v.warm(b), v.localBuild(b)))
	effort := tails.with(n)
	if n == 1 {
		effort = many
	}
	r := inTurns(b, effort, all)
	r.spawned(n, all, "fresh-dial", "local")
}

// benchmarkCold measures the first build on a VM: nothing is known of it and nobody is connected to it.
func benchmarkCold(b *testing.B) {
	v := newVM(b)
	all := at(b, 1, v.cold(b))
	r := inTurns(b, steady, all)
	r.spawned(1, all, "fresh-dial")
}

// warm returns the ways to start a build on the VM when others are there.
func (v *vm) warm(b *testing.B) []spawner {
	b.Helper()
	relay := v.buildBy(b, connector.Relay, 128)
	relay.why = likeAuto
	all := []spawner{
		v.buildBy(b, connector.Auto, 0),
		relay,
		v.buildBy(b, connector.Streamlocal, loginsAtOnce),
		v.buildBy(b, connector.Session, loginsAtOnce),
		v.rawBuild(b),
		v.freshBuild(b, 3),
	}
	client, err := newOpenSSHClient(b, v)
	if err != nil {
		missing(b, "control-master and ssh", err)
		return all
	}
	return append(all,
		spawner{
			name: "control-master", most: fewBuilds, why: twoSessions,
			spawn: func() (float64, error) { return buildByCommands(b, v, client.shared, client.shared) },
		},
		spawner{
			name: "ssh", every: 6, most: fewBuilds, why: maxStartups,
			spawn: func() (float64, error) { return buildByCommands(b, v, client.alone, client.alone) },
		})
}

// Who does not wait for sessions can start few builds at once: some would get one of the two that each needs, and never
// the other.
const (
	fewBuilds   = 4
	twoSessions = "a stock sshd has ten sessions on a connection, and a build takes two"
)

// rawBuild is a build by two sessions of the SSH library on a connection that stays.
func (v *vm) rawBuild(b *testing.B) spawner {
	b.Helper()
	client := v.client(b)
	return spawner{name: "raw", most: fewBuilds, why: twoSessions, spawn: func() (float64, error) {
		begin := time.Now()
		started, err := v.startBuildOn(b, client)
		if err != nil {
			return 0, err
		}
		took := micros(time.Since(begin))
		return took, started.close()
	}}
}

// cold returns the ways to start the first build on the VM.
func (v *vm) cold(b *testing.B) []spawner {
	b.Helper()
	stepmux(b) // built before it is measured
	var all []spawner
	for _, route := range []connector.Route{connector.Auto, connector.Relay, connector.Streamlocal, connector.Session} {
		all = append(all, spawner{name: string(route), spawn: func() (float64, error) { return v.firstBuild(b, route) }})
	}
	all = append(all, v.freshBuild(b, 1))
	client, err := newOpenSSHClient(b, v)
	if err != nil {
		missing(b, "control-master and ssh", err)
		return all
	}
	return append(all,
		spawner{name: "control-master", spawn: func() (float64, error) {
			master, shared := client.another(b)
			return buildByCommands(b, v, master, shared)
		}},
		spawner{name: "ssh", every: 3, spawn: func() (float64, error) {
			return buildByCommands(b, v, client.alone, client.alone)
		}},
	)
}

// localBuild is a build on the VM itself, without any SSH: serve, and its socket. Nothing can beat it.
func (v *vm) localBuild(b *testing.B) spawner {
	b.Helper()
	return spawner{name: "local", spawn: func() (float64, error) { return buildByCommands(b, v, nil, nil) }}
}

// freshBuild is a build with a connection of its own, which shares nothing.
func (v *vm) freshBuild(b *testing.B, every int) spawner {
	b.Helper()
	return spawner{
		name: "fresh-dial", every: every, most: loginsAtOnce, why: maxStartups, refuses: true,
		spawn: func() (float64, error) { return v.buildFresh(b) },
	}
}

// lease is a share of a connection that stays open.
type lease struct{ conn *mux.Conn }

func (l lease) Conn() connector.Conn { return l.conn }
func (l lease) Release()             {}

// build is a build whose step runner has answered.
type build struct {
	connector *connector.Connector
	client    *grpc.ClientConn
}

// newConnector returns the connector of a new build. known keeps the VM's capabilities.
func (v *vm) newConnector(
	b *testing.B, conn *mux.Conn, known *connector.VM, route connector.Route,
) (*connector.Connector, error) {
	return connector.New(connector.Config{
		Lease:   lease{conn},
		VM:      known,
		BuildID: rand.Text(),
		Runner:  []string{stepmux(b)},
		Options: vmconfig.Options{TempDir: v.tmp},
		Route:   route,
	})
}

// startBuild starts a build without a job.
func (v *vm) startBuild(b *testing.B, conn *mux.Conn, known *connector.VM, route connector.Route) (*build, error) {
	c, err := v.newConnector(b, conn, known, route)
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

// buildBy is the start of a build by a route, over a connection that stays. most is as a spawner's.
func (v *vm) buildBy(b *testing.B, route connector.Route, most int) spawner {
	b.Helper()
	stepmux(b) // built before it is measured
	conn, known := v.dial(b), new(connector.VM)
	return spawner{name: string(route), most: most, why: fewSessions, spawn: func() (float64, error) {
		return v.timeBuild(b, time.Now(), conn, known, route)
	}}
}

// timeBuild measures the start of a build, from begin on.
func (v *vm) timeBuild(
	b *testing.B, begin time.Time, conn *mux.Conn, known *connector.VM, route connector.Route,
) (float64, error) {
	started, err := v.startBuild(b, conn, known, route)
	if err != nil {
		return 0, err
	}
	took := micros(time.Since(begin))
	return took, started.close(b.Context())
}

// firstBuild measures the start of a build with the login that precedes it.
func (v *vm) firstBuild(b *testing.B, route connector.Route) (float64, error) {
	begin := time.Now()
	conn, err := mux.Dial(b.Context(), v.Addr, v.muxConfig())
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	return v.timeBuild(b, begin, conn, new(connector.VM), route)
}

// buildFresh measures the start of a build that shares nothing: a connection for the build,
// a session that serves, and when it says that it listens, another as the bridge.
func (v *vm) buildFresh(b *testing.B) (float64, error) {
	begin := time.Now()
	started, err := v.startFreshBuild(b)
	if err != nil {
		return 0, err
	}
	took := micros(time.Since(begin))
	return took, started.close()
}

// rawBuild is a build on a connection of the SSH library, which may be its own.
type rawBuild struct {
	own   *ssh.Client // nil if it is not
	serve *freshServe
	rpc   *grpc.ClientConn
}

// startFreshBuild starts a build on a connection of its own.
func (v *vm) startFreshBuild(b *testing.B) (*rawBuild, error) {
	client, err := ssh.Dial("tcp", v.Addr, v.ClientConfig())
	if err != nil {
		return nil, err
	}
	started, err := v.startBuildOn(b, client)
	if err != nil {
		client.Close()
		return nil, err
	}
	started.own = client
	return started, nil
}

// startBuildOn starts a build by two sessions of client.
func (v *vm) startBuildOn(b *testing.B, client *ssh.Client) (*rawBuild, error) {
	socket, err := wire.SocketPath(v.tmp, wire.BuildID(rand.Text()))
	if err != nil {
		return nil, err
	}
	serve, err := startFreshServe(client, stepmux(b), socket)
	if err != nil {
		return nil, err
	}
	rpc, err := firstCall(b.Context(), func() (io.ReadWriteCloser, error) {
		return freshProxy(client, stepmux(b), socket)
	})
	if err != nil {
		return nil, errors.Join(err, serve.close())
	}
	return &rawBuild{serve: serve, rpc: rpc}, nil
}

// close ends the build and waits for its serve.
func (f *rawBuild) close() error {
	f.rpc.Close()
	err := f.serve.close()
	if f.own != nil {
		f.own.Close()
	}
	return err
}

type freshServe struct {
	session *ssh.Session
	leash   io.WriteCloser
}

// close ends serve and waits for it.
func (s *freshServe) close() error {
	s.leash.Close()
	return s.session.Wait()
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

// buildByCommands measures the start of a build by two commands of this machine: serve as wrapServe makes it, and
// proxy as wrapProxy does; or, if they are nil, by serve and its socket itself.
func buildByCommands(b *testing.B, v *vm, wrapServe, wrapProxy func(argv []string) []string) (float64, error) {
	begin := time.Now()
	started, err := startCommandBuild(b, v, wrapServe, wrapProxy)
	if err != nil {
		return 0, err
	}
	took := micros(time.Since(begin))
	return took, started.close()
}

// commandBuild is a build whose serve is a command of this machine.
type commandBuild struct {
	serve *exec.Cmd
	leash io.Closer
	rpc   *grpc.ClientConn
}

func startCommandBuild(b *testing.B, v *vm, wrapServe, wrapProxy func(argv []string) []string) (*commandBuild, error) {
	socket, err := wire.SocketPath(v.tmp, wire.BuildID(rand.Text()))
	if err != nil {
		return nil, err
	}
	serve := []string{stepmux(b), "steps", "serve", "--socket", socket}
	dial := func() (io.ReadWriteCloser, error) { return net.Dial("unix", socket) }
	if wrapServe != nil {
		serve = wrapServe(serve)
		proxy := wrapProxy([]string{stepmux(b), "steps", "proxy", "--socket", socket})
		dial = func() (io.ReadWriteCloser, error) { return startCommandStream(b.Context(), proxy) }
	}
	cmd := exec.CommandContext(b.Context(), serve[0], serve[1:]...)
	leash, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	started := &commandBuild{serve: cmd, leash: leash}
	line, err := bufio.NewReader(stderr).ReadString('\n')
	if err == nil && line != wire.ReadyLine(socket) {
		err = fmt.Errorf("serve says %q", line)
	}
	if err == nil {
		started.rpc, err = firstCall(b.Context(), dial)
	}
	if err != nil {
		return nil, errors.Join(err, started.close())
	}
	return started, nil
}

// close ends the build and waits for its serve.
func (s *commandBuild) close() error {
	if s.rpc != nil {
		s.rpc.Close()
	}
	s.leash.Close()
	return s.serve.Wait()
}

// commandStream is a command's standard input and output.
type commandStream struct {
	io.ReadCloser
	in  io.WriteCloser
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

func (s *commandStream) Write(p []byte) (int, error) { return s.in.Write(p) }

// CloseWrite ends the command's input.
func (s *commandStream) CloseWrite() error { return s.in.Close() }

// Close ends the command's input and output, which ends it even while it writes, and waits for it.
func (s *commandStream) Close() error {
	err := errors.Join(s.in.Close(), s.ReadCloser.Close())
	_ = s.cmd.Wait() // by a broken pipe, maybe
	return err
}

// firstCall makes the first call of a step runner.
func firstCall(
	ctx context.Context, dial func() (io.ReadWriteCloser, error), more ...grpc.DialOption,
) (*grpc.ClientConn, error) {
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
