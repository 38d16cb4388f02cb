package remote

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/wire"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/pipe"
	"github.com/stepmux/stepmux/remote/proc"
)

// reusable is a serve that its relay, the test, can give build after build. It runs as an ordinary user.
type reusable struct {
	tmp     string
	cmd     *exec.Cmd
	control int
	exited  chan struct{} // closed once cmd.ProcessState is set
	next    [3]*os.File   // of the first build
}

// startReusable starts such a serve with a level of isolation.
func startReusable(t *testing.T, level vmconfig.Level) *reusable {
	t.Helper()
	r := &reusable{tmp: remotetest.ShortTemp(t), exited: make(chan struct{})}
	require.NoError(t, os.Chmod(r.tmp, 0o777|os.ModeSticky))
	near, far, err := pipe.ControlPair()
	require.NoError(t, err)
	r.control = near
	theirs := r.pipes(t)
	r.cmd = remotetest.Role(context.Background(), "reused", string(level))
	if os.Geteuid() == 0 {
		remotetest.AsNobody(t, r.cmd)
	}
	home := filepath.Join(r.tmp, "home")
	require.NoError(t, os.Mkdir(home, 0o700))
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chown(home, remotetest.Nobody, remotetest.Nobody))
	}
	r.cmd.Env, r.cmd.Dir = append(r.cmd.Env, "HOME="+home), home
	socket := os.NewFile(uintptr(far), "control")
	defer socket.Close()
	r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = theirs[0], theirs[1], theirs[2]
	r.cmd.ExtraFiles = []*os.File{socket}
	require.NoError(t, r.cmd.Start())
	closeAll(theirs)
	go func() {
		r.cmd.Wait() // its debugger may have waited for it
		close(r.exited)
	}()
	t.Cleanup(func() {
		r.cmd.Process.Kill()
		<-r.exited
		if r.control >= 0 {
			unix.Close(r.control)
		}
	})
	return r
}

func closeAll(files [3]*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// pipes makes the pipes of the next build and returns the ends of serve.
func (r *reusable) pipes(t *testing.T) (theirs [3]*os.File) {
	t.Helper()
	for i := range theirs {
		in, out, err := os.Pipe()
		require.NoError(t, err)
		r.next[i], theirs[i] = in, out
		if i == 0 {
			r.next[i], theirs[i] = out, in
		}
	}
	return theirs
}

// turn is one build of such a serve.
type turn struct {
	*reusable
	socket string
	secret wire.Secret
	files  [3]*os.File
	stderr *remotetest.Output
	ended  chan struct{} // closed once stdout and stderr have ended
	conn   *grpc.ClientConn
	client pb.StepRunnerClient
}

// build starts a build, by new pipes unless it is the first one.
func (r *reusable) build(t *testing.T, id string) *turn {
	t.Helper()
	if r.next[0] == nil {
		theirs := r.pipes(t)
		require.NoError(t, pipe.SendBuild(r.control, [3]int{
			int(theirs[0].Fd()), int(theirs[1].Fd()), int(theirs[2].Fd()),
		}))
		closeAll(theirs)
	}
	b := &turn{
		reusable: r, socket: remotetest.SocketIn(t, r.tmp, id), secret: wire.NewSecret(), files: r.next,
		stderr: remotetest.NewOutput(), ended: make(chan struct{}),
	}
	r.next = [3]*os.File{}
	go func() {
		defer close(b.ended)
		io.Copy(b.stderr, b.files[2])
		io.Copy(io.Discard, b.files[1])
	}()
	t.Cleanup(func() { closeAll(b.files) })
	_, err := b.files[0].WriteString(b.socket + "\n" + string(b.secret.Line()))
	require.NoError(t, err)
	select {
	case <-b.stderr.Ready:
	case <-b.ended:
		require.FailNow(t, "serve has ended", "%s", b.stderr)
	}
	b.conn = b.connect(t, b.secret)
	b.client = pb.NewStepRunnerClient(b.conn)
	return b
}

// connect returns a client of the build's socket that sends the secret.
func (b *turn) connect(t *testing.T, secret wire.Secret) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+b.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithPerRPCCredentials(bearer(secret.Authorization())))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// bearer is a secret that a client sends with each call.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{wire.AuthorizationKey: string(b)}, nil
}

func (bearer) RequireTransportSecurity() bool { return false }

// run runs a job to its end, and returns its output and its state. It skips the test without isolation.
func (b *turn) run(t *testing.T, job *pb.Job) (string, *pb.JobState) {
	t.Helper()
	_, err := b.client.Run(t.Context(), &pb.RunRequest{Id: "job", Job: job})
	require.NoError(t, err)
	stdout, stderr := readOutput(t, b.client, "job")
	state := finalState(t, b.client, "job")
	if state.GetIsolation() == string(vmconfig.Off) {
		t.Skip("part missing: namespaces: ", state.GetIsolationReason())
	}
	return stdout + stderr, state
}

// end ends a build as its manager does, and reports whether serve waits for another one.
func (b *turn) end(t *testing.T) bool {
	t.Helper()
	require.NoError(t, b.conn.Close())
	return b.letGo(t)
}

// letGo lets go of the leash only.
func (b *turn) letGo(t *testing.T) bool {
	t.Helper()
	require.NoError(t, b.files[0].Close())
	<-b.ended
	remotetest.RequireGone(t, filepath.Dir(b.socket))
	return pipe.TakeWaiting(b.control)
}

// requireEnd waits for the end of serve, and requires that nothing of it is left.
func (r *reusable) requireEnd(t *testing.T) {
	t.Helper()
	<-r.exited
	require.Empty(t, remotetest.Names(t, filepath.Join(r.tmp, wire.SocketBase)))
}

// Symptom: a fifth of the processor time of a short build was the start and the end of its step runner.
//
//stepmux:reliability promises | A step runner that is used again gives a build nothing of an earlier one, and one that
//stepmux:more was touched is not used again
//stepmux:with remote.TestServeThatWasTouchedByItsBuildIsNotGivenAnotherOne
//stepmux:with remote.TestAClientThatStaysAfterItsBuildGetsNothingOfTheNextOne
//stepmux:with remote/relay.TestAServeThatIsKilledInItsSecondBuildTakesOnlyThatAlong
//stepmux:with remote/relay.TestAServeThatWaitsEndsWithItsRelay
func TestServeIsGivenBuildAfterBuildAndEachIsFresh(t *testing.T) {
	r := startReusable(t, vmconfig.Processes)
	secrets := []wire.Secret{wire.NewSecret()}
	for i, code := range []int{0, 1, 0} {
		b := r.build(t, fmt.Sprint("b", i))
		for _, old := range secrets {
			_, err := pb.NewStepRunnerClient(b.connect(t, old)).List(t.Context(), &pb.ListRequest{})
			require.Equal(t, codes.Unauthenticated, status.Code(err), "the secret of an earlier build: %v", err)
		}
		secrets = append(secrets, b.secret)
		list, err := b.client.List(t.Context(), &pb.ListRequest{})
		require.NoError(t, err)
		require.Empty(t, list.GetJobs())
		out, state := b.run(t, &pb.Job{
			Script: fmt.Sprintf("echo secret0 secret1 secret2 $OF0$OF1$OF2; ls -A; [ ! -e /tmp/file ] || echo old; "+
				"touch file /tmp/file; sleep 1000 & exit %d", code),
			Variables: []*pb.Variable{{Key: "MASKED", Value: fmt.Sprint("secret", i), Masked: true}},
			Env:       map[string]string{fmt.Sprint("OF", i): fmt.Sprint("env", i)},
		})
		require.EqualValues(t, code, state.GetExitCode(), "%v", state)
		want := []string{"secret0", "secret1", "secret2"}
		want[i] = "[MASKED]"
		require.Equal(t, fmt.Sprintf("%s env%d\n", strings.Join(want, " "), i), out)
		require.Equal(t, wire.ReadyLine(b.socket), b.stderr.String(), "its own notices only")
		require.True(t, b.end(t), "it waits for another build")
		if os.Geteuid() == 0 { // others may not look into it
			for fd := range 3 {
				file, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", r.cmd.Process.Pid, fd))
				require.NoError(t, err)
				require.Equal(t, os.DevNull, file)
			}
		}
		_, err = net.Dial("unix", b.socket)
		require.ErrorIs(t, err, unix.ENOENT, "nothing is open to the build any more")
	}
	unix.Close(r.control)
	r.control = -1
	r.requireEnd(t)
	require.Zero(t, r.cmd.ProcessState.ExitCode())
}

//stepmux:reliability mechanisms | A step runner that its build has changed gets no other build | `remote/reuse.go`
func TestServeThatWasTouchedByItsBuildIsNotGivenAnotherOne(t *testing.T) {
	run := func(t *testing.T, b *turn) { b.run(t, &pb.Job{Script: "true"}) }
	for name, touch := range map[string]func(t *testing.T, b *turn){
		"nothing, so it is given another one": run,
		"nothing but a port for services": func(t *testing.T, b *turn) {
			b.listen(t)
			run(t, b)
		},
		"a connection to that port": func(t *testing.T, b *turn) {
			stream, address := b.listen(t)
			run(t, b)
			conn, err := net.Dial("tcp", address)
			require.NoError(t, err)
			t.Cleanup(func() { conn.Close() })
			_, err = stream.Recv()
			require.NoError(t, err)
		},
		"a debugger": func(t *testing.T, b *turn) {
			run(t, b)
			b.trace(t, b.cmd.Process.Pid)
		},
		"a debugger of one thread": func(t *testing.T, b *turn) {
			run(t, b)
			threads := remotetest.Names(t, fmt.Sprintf("/proc/%d/task", b.cmd.Process.Pid))
			last, err := strconv.Atoi(threads[len(threads)-1])
			require.NoError(t, err)
			b.trace(t, last)
		},
		"SIGSTOP": func(t *testing.T, b *turn) {
			run(t, b)
			b.signal(t, unix.SIGSTOP)
			remotetest.Eventually(t, func() bool {
				info, err := proc.ReadInfo(b.cmd.Process.Pid)
				return err == nil && info.Stopped
			}, "stopped")
			b.signal(t, unix.SIGCONT)
		},
		"SIGTERM": func(t *testing.T, b *turn) {
			run(t, b)
			b.signal(t, unix.SIGTERM)
			remotetest.Eventually(t, func() bool { // otherwise the end of the leash may come first
				info, err := proc.ReadInfo(b.cmd.Process.Pid)
				return err != nil || info.Ended
			}, "ended")
		},
		"much memory": func(t *testing.T, b *turn) {
			b.run(t, &pb.Job{Script: "true # " + remotetest.Repeat(20<<20)})
		},
		"a connection that says nothing": func(t *testing.T, b *turn) {
			run(t, b)
			b.dial(t)
			_, err := pb.NewStepRunnerClient(b.connect(t, b.secret)).List(t.Context(), &pb.ListRequest{})
			require.NoError(t, err, "the connection before it is accepted, too")
		},
		"a connection that answers nothing": func(t *testing.T, b *turn) {
			run(t, b)
			conn := b.dial(t)
			_, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
			require.NoError(t, err)
			_, err = conn.Read(make([]byte, 9)) // the server's settings
			require.NoError(t, err)
		},
		"a call under way": func(t *testing.T, b *turn) {
			run(t, b)
			_, err := b.client.Run(t.Context(), &pb.RunRequest{Id: "2", Job: &pb.Job{Script: "sleep 1000"}})
			require.NoError(t, err)
			stream, err := pb.NewStepRunnerClient(b.connect(t, b.secret)).Follow(t.Context(), &pb.FollowRequest{Id: "2"})
			require.NoError(t, err)
			_, err = stream.Recv()
			require.NoError(t, err)
		},
		"a job that runs": func(t *testing.T, b *turn) {
			run(t, b)
			_, err := b.client.Run(t.Context(), &pb.RunRequest{Id: "2", Job: &pb.Job{Script: "sleep 1000"}})
			require.NoError(t, err)
		},
		"a job that was cancelled": func(t *testing.T, b *turn) {
			run(t, b)
			_, err := b.client.Run(t.Context(), &pb.RunRequest{Id: "2", Job: &pb.Job{Script: "sleep 1000"}})
			require.NoError(t, err)
			_, err = b.client.Cancel(t.Context(), &pb.CancelRequest{Id: "2", Force: true})
			require.NoError(t, err)
			finalState(t, b.client, "2")
		},
		"a job that took too long": func(t *testing.T, b *turn) {
			_, state := b.run(t, &pb.Job{Script: "sleep 1000", Timeout: durationpb.New(50 * time.Millisecond)})
			require.True(t, state.GetTimedOut())
		},
		"an init that was killed": func(t *testing.T, b *turn) {
			run(t, b)
			_, err := b.client.Run(t.Context(), &pb.RunRequest{Id: "2", Job: &pb.Job{Script: "sleep 1000"}})
			require.NoError(t, err)
			remotetest.Eventually(t, func() bool { // it may not have started yet
				all, err := proc.List()
				require.NoError(t, err)
				i := slices.IndexFunc(all, func(p proc.Info) bool { return p.Parent == b.cmd.Process.Pid })
				return i >= 0 && unix.Kill(all[i].PID, unix.SIGKILL) == nil
			}, "killed")
			finalState(t, b.client, "2")
		},
		"a limit": func(t *testing.T, b *turn) {
			run(t, b)
			limit := exec.Command("prlimit", "--pid", strconv.Itoa(b.cmd.Process.Pid), "--nofile=100:100")
			limit.SysProcAttr = b.cmd.SysProcAttr // a neighbour of the same user
			out, err := limit.CombinedOutput()
			require.NoError(t, err, "%s", out)
		},
		"a processor": func(t *testing.T, b *turn) {
			if runtime.NumCPU() == 1 {
				t.Skip("part missing: a second processor")
			}
			run(t, b)
			one := unix.CPUSet{}
			one.Set(0)
			require.NoError(t, unix.SchedSetaffinity(b.cmd.Process.Pid, &one))
		},
		"no job, so that it has no walls": func(*testing.T, *turn) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startReusable(t, vmconfig.Processes)
			b := r.build(t, "b1")
			touch(t, b)
			waits := b.end(t)
			if !strings.HasPrefix(name, "nothing") {
				require.False(t, waits)
				r.requireEnd(t)
				return
			}
			require.True(t, waits)
			r.build(t, "b2").run(t, &pb.Job{Script: "true"})
		})
	}
	t.Run("no isolation", func(t *testing.T) {
		t.Parallel()
		r := startReusable(t, vmconfig.Off)
		b := r.build(t, "b1")
		_, err := b.client.Run(t.Context(), &pb.RunRequest{Id: "job", Job: &pb.Job{Script: "true"}})
		require.NoError(t, err)
		finalState(t, b.client, "job")
		require.False(t, b.end(t))
		r.requireEnd(t)
	})
}

// listen opens the port for the services of the build, and returns the call, which announces connections.
func (b *turn) listen(t *testing.T) (stream grpc.ServerStreamingClient[pb.ListenResponse], address string) {
	t.Helper()
	stream, err := pb.NewReachClient(b.conn).Listen(t.Context(), &pb.ListenRequest{})
	require.NoError(t, err)
	first, err := stream.Recv()
	require.NoError(t, err)
	return stream, first.GetAddress()
}

// signal sends a signal to serve.
func (r *reusable) signal(t *testing.T, sig unix.Signal) {
	t.Helper()
	require.NoError(t, r.cmd.Process.Signal(sig))
}

// dial connects to the build's socket, until the end of the test.
func (b *turn) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", b.socket)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// trace attaches a debugger to a thread of serve, until the end of the test.
func (r *reusable) trace(t *testing.T, thread int) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("part missing: only root can trace a process that is not dumpable")
	}
	attached := make(chan error)
	var tracer sync.WaitGroup
	tracer.Go(func() {
		runtime.LockOSThread() // the thread is the debugger
		defer runtime.UnlockOSThread()
		err := unix.PtraceSeize(thread)
		attached <- err
		for status := new(unix.WaitStatus); err == nil; { // otherwise serve does not end
			if _, err = unix.Wait4(thread, status, unix.WALL, nil); status.Stopped() { // the Go runtime sends signals
				err = unix.PtraceCont(thread, int(status.StopSignal()))
			}
		}
		<-r.exited
	})
	t.Cleanup(func() {
		r.cmd.Process.Kill()
		tracer.Wait()
	})
	require.NoError(t, <-attached)
}

func TestAClientThatStaysAfterItsBuildGetsNothingOfTheNextOne(t *testing.T) {
	r := startReusable(t, vmconfig.Processes)
	b := r.build(t, "b1")
	b.run(t, &pb.Job{Script: "echo one"})
	require.True(t, b.letGo(t), "a connection whose client follows the protocol is closed")
	next := r.build(t, "b2")
	next.run(t, &pb.Job{Script: "echo two"})
	_, err := b.client.List(t.Context(), &pb.ListRequest{})
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.True(t, next.end(t))
}

func TestServeThatWaitsForABuildEndsAtOnce(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, r *reusable){
		"with its relay": func(_ *testing.T, r *reusable) {
			unix.Close(r.control)
			r.control = -1
		},
		"by SIGTERM":   func(t *testing.T, r *reusable) { r.signal(t, unix.SIGTERM) },
		"by a message": func(t *testing.T, r *reusable) { require.NoError(t, unix.Send(r.control, []byte("?"), 0)) },
	} {
		t.Run(name, func(t *testing.T) {
			r := startReusable(t, vmconfig.Processes)
			b := r.build(t, "b1")
			b.run(t, &pb.Job{Script: "true"})
			require.True(t, b.end(t))
			end(t, r)
			r.requireEnd(t)
			require.Zero(t, r.cmd.ProcessState.ExitCode())
		})
	}
}

func TestAProcessThatDiffersFromAFreshOneIsNotUsedAgain(t *testing.T) {
	fresh, err := readState()
	require.NoError(t, err)
	require.Positive(t, fresh.heap)
	require.NoError(t, fresh.differs(&fresh))
	now, err := readState()
	require.NoError(t, err)
	require.Equal(t, fresh.kernel, now.kernel)
	for name, change := range map[string]func(s *state){
		"a file":        func(s *state) { s.files++ },
		"memory":        func(s *state) { s.heap += reuseBounds.growth + 1 },
		"the directory": func(s *state) { s.dir += " (deleted)" },
		"a variable":    func(s *state) { s.environ = append(slices.Clone(s.environ), "X=1") },
		"the umask": func(s *state) {
			s.kernel = slices.Clone(s.kernel)
			s.kernel[0] = []byte("Umask:\t0777\n")
		},
	} {
		changed := fresh
		change(&changed)
		require.Error(t, changed.differs(&fresh), name)
	}
	for name, r := range map[string]*reuse{
		"no relay":    nil,
		"not clean":   {began: time.Now()},
		"used enough": {clean: true, began: time.Now(), builds: maxBuilds - 1},
		"old":         {clean: true, began: time.Now().Add(-maxAge - time.Second)},
	} {
		require.False(t, r.next(t.Context()), name)
	}
	ended, stop := signal.NotifyContext(t.Context(), unix.SIGUSR1)
	stop()
	clean := &jobRunner{clean: func() bool { return true }}
	for _, end := range []struct {
		why   error
		since time.Time
		clean bool
	}{
		{pipe.ErrLeash, time.Now(), true},
		{context.Cause(ended), time.Now(), false},
		{pipe.ErrLeash, time.Now().Add(-reuseBounds.end), false},
	} {
		life, cancel := context.WithCancelCause(t.Context())
		cancel(end.why)
		var r reuse
		r.ended(life, end.since, clean, true)
		require.Equal(t, end.clean, r.clean)
		r.ended(life, end.since, clean, false)
		require.False(t, r.clean)
	}
}
