package remote

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/wire"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/socketdir"
)

// newClient returns a client whose connections dial makes.
func newClient(t *testing.T, dial func(ctx context.Context) (net.Conn, error)) pb.StepRunnerClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:serve",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return pb.NewStepRunnerClient(conn)
}

// clientOf returns a client of the serve that listens on socket.
func clientOf(t *testing.T, socket string) pb.StepRunnerClient {
	t.Helper()
	return newClient(t, func(ctx context.Context) (net.Conn, error) { return socketdir.Connect(ctx, socket) })
}

func runScript(t *testing.T, client pb.StepRunnerClient, id, script string) {
	t.Helper()
	_, err := client.Run(t.Context(), &pb.RunRequest{Id: id, Type: pb.RunRequest_script, CiScript: script})
	require.NoError(t, err)
}

// readOutput returns all a job writes, stdout and stderr; it waits for the job's end.
func readOutput(t *testing.T, client pb.StepRunnerClient, id string) (stdout, stderr string) {
	t.Helper()
	stream, err := client.FollowIO(t.Context(), &pb.FollowIORequest{Id: id})
	require.NoError(t, err)
	var texts [2]strings.Builder
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return texts[0].String(), texts[1].String()
		}
		require.NoError(t, err)
		texts[piece.GetStreamType()].Write(piece.GetStream())
	}
}

// finalState follows a job to its end and returns its state.
func finalState(t *testing.T, client pb.StepRunnerClient, id string) *pb.JobState {
	t.Helper()
	stream, err := client.Follow(t.Context(), &pb.FollowRequest{Id: id})
	require.NoError(t, err)
	var job *pb.JobState
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return job
		}
		require.NoError(t, err)
		job = message.GetJob()
	}
}

// vitals is a named pipe that processes of a job hold open: it ends when the last of them has.
type vitals struct {
	path string
	file *os.File
}

func newVitals(t *testing.T) *vitals {
	t.Helper()
	v := &vitals{path: filepath.Join(t.TempDir(), "vitals")}
	require.NoError(t, unix.Mkfifo(v.path, 0o600))
	return v
}

// script returns a script that holds the pipe, with a child and a child in a session of its own, and then runs body.
// waitUp returns when body is about to run.
func (v *vitals) script(t *testing.T, body string) string {
	t.Helper()
	path, err := wire.Quote("exec", v.path)
	require.NoError(t, err)
	return "exec 9>" + strings.TrimPrefix(path, "exec ") + "\nsleep 1000 &\nsetsid sleep 1000 &\necho up >&9\n" + body
}

func (v *vitals) waitUp(t *testing.T) {
	t.Helper()
	var err error
	v.file, err = os.Open(v.path) // waits for the script to open it too
	require.NoError(t, err)
	t.Cleanup(func() { v.file.Close() })
	line := make([]byte, 3)
	_, err = io.ReadFull(v.file, line)
	require.NoError(t, err)
	require.Equal(t, "up\n", string(line))
}

// waitGone waits until no process of the script is left and returns their output.
func (v *vitals) waitGone(t *testing.T) string {
	t.Helper()
	text, err := io.ReadAll(v.file)
	require.NoError(t, err)
	return string(text)
}

//stepmux:faults executor | The step runner ends with its standard input, the job's processes do not
//stepmux:faults service | The server ends, but its jobs run on
//stepmux:with remote.TestServeKillsJobsThatIgnoreSIGTERM, remote.TestJobsOfAKilledServeTakeItsDirectoryWithThem
//stepmux:reliability mechanisms | Nothing is left of a build whose manager is gone | `remote/pipe/leash.go`
func TestServeEndsItsJobsInEveryWayItCanEnd(t *testing.T) {
	for how, end := range map[string]func(*served) error{
		"SIGTERM":      func(s *served) error { return s.cmd.Process.Signal(unix.SIGTERM) },
		"SIGHUP":       func(s *served) error { return s.cmd.Process.Signal(unix.SIGHUP) },
		"end of stdin": func(s *served) error { return s.stdin.Close() },
	} {
		t.Run(how, func(t *testing.T) {
			tmp := remotetest.ShortTemp(t)
			socket := remotetest.SocketIn(t, tmp, "42")
			s := startServe(t, socket)
			v := newVitals(t)
			runScript(
				t,
				clientOf(t, socket),
				"job",
				v.script(t, "trap 'echo asked >&9; exit 3' TERM\necho trap >&9\nwhile :; do sleep 0.01; done"),
			)
			v.waitUp(t)
			_, err := io.ReadFull(v.file, make([]byte, len("trap\n")))
			require.NoError(t, err)
			require.NoError(t, end(s))
			require.Equal(t, "asked\n", v.waitGone(t))
			s.requireExit(t, 0, socket)
			require.Equal(t, greeting(socket), s.stderr.String())
			require.Empty(t, remotetest.Names(t, filepath.Join(tmp, wire.SocketBase)))
		})
	}
}

func TestServeKillsJobsThatIgnoreSIGTERM(t *testing.T) {
	socket := remotetest.SocketIn(t, remotetest.ShortTemp(t), "42")
	s := launchServe(t, socket, func(s *served) { s.cmd.Args = append(s.cmd.Args, "50ms") }) // the grace
	s.waitReady(t)
	v := newVitals(t)
	runScript(t, clientOf(t, socket), "job", "trap '' TERM\n"+v.script(t, "while :; do sleep 1; done"))
	v.waitUp(t)
	require.NoError(t, s.stdin.Close())
	require.Empty(t, v.waitGone(t))
	s.requireExit(t, 0, socket)
}

func TestJobsOfAKilledServeTakeItsDirectoryWithThem(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
	killed := startServe(t, remotetest.SocketIn(t, tmp, "killed"))
	client := clientOf(t, remotetest.SocketIn(t, tmp, "killed"))
	var all []*vitals
	for _, id := range []string{"a", "b", "c"} {
		v := newVitals(t)
		runScript(t, client, id, v.script(t, "wait"))
		v.waitUp(t)
		all = append(all, v)
	}
	require.NoError(t, killed.cmd.Process.Kill())
	<-killed.exited
	for _, v := range all {
		require.Empty(t, v.waitGone(t))
	}
	// Nobody has to come and sweep.
	base := filepath.Join(tmp, wire.SocketBase)
	require.Eventually(t, func() bool { return len(remotetest.Names(t, base)) == 0 }, time.Minute, time.Millisecond)
}

func TestFollowersGetTheFinalStateWhenServeEnds(t *testing.T) {
	socket := remotetest.SocketIn(t, remotetest.ShortTemp(t), "42")
	s := startServe(t, socket)
	client := clientOf(t, socket)
	v := newVitals(t)
	runScript(t, client, "job", v.script(t, "wait"))
	v.waitUp(t)
	stream, err := client.Follow(t.Context(), &pb.FollowRequest{Id: "job"})
	require.NoError(t, err)
	first, err := stream.Recv() // the follower is there before the end
	require.NoError(t, err)
	require.Equal(t, pb.StepResult_running, first.GetResult().GetStatus())
	require.NoError(t, s.stdin.Close())
	var last *pb.FollowResponse
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err, "the stream was cut")
		last = message
	}
	require.Equal(t, pb.JobState_cancelled, last.GetJob().GetStatus())
	s.requireExit(t, 0, socket)
}

// Other step runners wait for their followers at the end, without a limit.
func TestServeEndsWhileItsFollowersDoNotRead(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
	socket := remotetest.SocketIn(t, tmp, "42")
	s := startServe(t, socket)
	client := clientOf(t, socket)
	v := newVitals(t)
	runScript(t, client, "job", "head -c 20000000 /dev/zero\n"+v.script(t, "wait"))
	stream, err := client.FollowIO(t.Context(), &pb.FollowIORequest{Id: "job"})
	require.NoError(t, err)
	_, err = stream.Recv() // the call is at work; nothing more of it is read
	require.NoError(t, err)
	v.waitUp(t)
	require.NoError(t, s.cmd.Process.Signal(unix.SIGTERM))
	require.Empty(t, v.waitGone(t))
	s.requireExit(t, 0, socket)
	require.Empty(t, remotetest.Names(t, filepath.Join(tmp, wire.SocketBase)))
}

//stepmux:faults engine | The whole environment of the server reaches every step
//stepmux:with remote/job/service.TestServersEnvironmentIsNotTheJobs
func TestServesEnvironmentReachesNoJob(t *testing.T) {
	socket := remotetest.SocketIn(t, remotetest.ShortTemp(t), "42")
	s := launchServe(t, socket, func(s *served) {
		s.cmd.Env = append(
			s.cmd.Env,
			"CI_JOB_TOKEN=of-the-manager",
			"LD_LIBRARY_PATH=/of-the-manager",
			"BASH_ENV=/of-the-manager",
		)
	})
	s.waitReady(t)
	client := clientOf(t, socket)
	runScript(t, client, "job", "env")
	stdout, stderr := readOutput(t, client, "job")
	require.Contains(t, stdout, "PATH=")
	require.NotContains(t, stdout+stderr, "of-the-manager")
	require.NotContains(t, stdout, remotetest.RoleVar)
	require.NoError(t, s.stdin.Close())
	s.requireExit(t, 0, socket)
}

//stepmux:faults service | Each server leaves temporary files behind
//stepmux:with remote/socketdir.TestSockDirIsPrivateFreshAndGoneInTheEnd
func TestEverythingOfAJobIsInTheBuildsDirectory(t *testing.T) {
	tmp := remotetest.ShortTemp(t)
	socket := remotetest.SocketIn(t, tmp, "42")
	s := launchServe(t, socket, func(s *served) { s.cmd.Env = append(s.cmd.Env, "TMPDIR="+tmp) })
	s.waitReady(t)
	client := clientOf(t, socket)
	runScript(t, client, "job", "pwd; mkdir closed; touch closed/file; chmod 0 closed")
	stdout, _ := readOutput(t, client, "job")
	require.True(t, strings.HasPrefix(stdout, filepath.Dir(socket)+"/"), stdout)
	want := pb.JobState_suceeded //nolint:misspell // the published name
	require.Equal(t, want, finalState(t, client, "job").GetStatus())
	require.Equal(t, []string{wire.SocketBase}, remotetest.Names(t, tmp))
	require.Equal(t, []string{"42"}, remotetest.Names(t, filepath.Join(tmp, wire.SocketBase)))
	require.NoError(t, s.stdin.Close())
	s.requireExit(t, 0, socket)
}

// Symptom: a directory that its job had renamed stayed until the next build's sweep, with the script in clear text;
// outside of the base it stayed forever.
//
//stepmux:faults service | A job renames its directory, and its scripts stay on the machine
//stepmux:with internal/rmtree.TestRemoveOpenFindsADirectoryThatWasMoved
//stepmux:with internal/rmtree.TestRemovalOfAnOpenDirectoryEndsWithItsContext
//stepmux:with remote/socketdir.TestSockDirRemoveEndsWithItsContext
//stepmux:with remote/proc.TestRemovalOfAnOrphanDirectoryEndsWithItsContext
func TestAJobThatRenamesItsDirectoriesLeavesNothing(t *testing.T) {
	outside := []string{"the job's, elsewhere", "all jobs', elsewhere"}
	for name, move := range map[string]string{
		"the build's, beside":                    `cd / && mv "$build" "$build-moved"`,
		"the build's, elsewhere":                 `cd / && mv "$build" "$tmp/stash"`,
		"the build's, with another in its place": `cd / && mv "$build" "$tmp/stash" && mkdir "$build"`,
		"the build's, below one that is closed":  `cd / && mkdir "$tmp/d" && mv "$build" "$tmp/d" && chmod 0500 "$tmp/d"`,
		"the job's, elsewhere":                   `job=$(dirname "$PWD"); cd / && mv "$job" "$tmp/stash"`,
		"the job's, beside, with a link to it":   `j=$(dirname "$PWD"); cd / && mv "$j" "$j-x" && ln -s "$j-x" "$j"`,
		"all jobs', elsewhere":                   `jobs=$(dirname "$(dirname "$PWD")"); cd / && mv "$jobs" "$tmp/stash"`,
	} {
		for _, end := range []string{"the job has ended", "the job runs", "serve is killed"} {
			if end == "serve is killed" && slices.Contains(outside, name) {
				continue // the inits know the build's directory only
			}
			t.Run(name+"; "+end, func(t *testing.T) {
				tmp := remotetest.ShortTemp(t)
				t.Cleanup(func() { _ = os.Chmod(filepath.Join(tmp, "d"), 0o700) })
				socket := remotetest.SocketIn(t, tmp, "42")
				s := startServe(t, socket)
				client := clientOf(t, socket)
				v := newVitals(t)
				script := "# geheim\nbuild=" + filepath.Dir(socket) + " tmp=" + tmp + "\n" + move + "\n"
				if end == "the job has ended" {
					runScript(t, client, "job", script)
					require.Empty(t, finalState(t, client, "job").GetMessage())
					requireNoScript(t, tmp)
				} else {
					runScript(t, client, "job", script+v.script(t, "wait"))
					v.waitUp(t)
				}
				if end == "serve is killed" {
					require.NoError(t, s.cmd.Process.Kill())
				} else {
					require.NoError(t, s.stdin.Close())
				}
				<-s.exited
				if end != "the job has ended" {
					require.Empty(t, v.waitGone(t))
				}
				gone := func() bool { return len(left(t, tmp)) == 0 }
				require.Eventually(t, gone, time.Minute, 10*time.Millisecond, "%v", left(t, tmp))
			})
		}
	}
}

// left returns the files below tmp that are not empty, and the directories that jobs have.
func left(t *testing.T, tmp string) (paths []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(tmp, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && (!d.IsDir() || d.Name() == "jobs" || d.Name() == "work") {
			paths = append(paths, path)
		}
		return err
	}))
	return paths
}

// requireNoScript requires that no file below tmp has the text of a job.
func requireNoScript(t *testing.T, tmp string) {
	t.Helper()
	for _, path := range left(t, tmp) {
		if text, err := os.ReadFile(path); err == nil {
			require.NotContains(t, string(text), "geheim", path)
		}
	}
}

// stdioConn is a connection made of a process's stdin and stdout. Deadlines do nothing.
type stdioConn struct {
	io.Reader
	io.WriteCloser

	net.Conn // nil: for the methods gRPC does not call
}

func (c stdioConn) Read(p []byte) (int, error)       { return c.Reader.Read(p) }
func (c stdioConn) Write(p []byte) (int, error)      { return c.WriteCloser.Write(p) }
func (c stdioConn) Close() error                     { return c.WriteCloser.Close() }
func (c stdioConn) LocalAddr() net.Addr              { return &net.UnixAddr{} }
func (c stdioConn) RemoteAddr() net.Addr             { return &net.UnixAddr{} }
func (c stdioConn) SetDeadline(time.Time) error      { return nil }
func (c stdioConn) SetReadDeadline(time.Time) error  { return nil }
func (c stdioConn) SetWriteDeadline(time.Time) error { return nil }

func TestJobRunsThroughTheProxyAndTheProxyEndsWithItsClient(t *testing.T) {
	socket := remotetest.SocketIn(t, remotetest.ShortTemp(t), "42")
	s := startServe(t, socket)
	proxies := make(chan *exec.Cmd, 1)
	client := newClient(t, func(context.Context) (net.Conn, error) {
		cmd := remotetest.Role(context.Background(), "proxy", socket)
		stdin, err := cmd.StdinPipe()
		if err != nil {
			return nil, err
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		proxies <- cmd
		return stdioConn{Reader: stdout, WriteCloser: stdin}, nil
	})
	runScript(t, client, "job", "head -c 3000000 /dev/zero; echo done >&2; exit 7")
	stdout, stderr := readOutput(t, client, "job")
	require.Equal(t, strings.Repeat("\x00", 3_000_000), stdout)
	require.Equal(t, "done\n", stderr)
	job := finalState(t, client, "job")
	require.Equal(t, pb.JobState_failed, job.GetStatus())
	require.EqualValues(t, 7, job.GetExitCode())
	require.NoError(t, s.stdin.Close())
	s.requireExit(t, 0, socket)
	require.NoError(t, (<-proxies).Wait())
}

func TestServeGoesOnWhenTheDiskIsFull(t *testing.T) {
	tmp := remotetest.TinyFS(t)
	socket := remotetest.SocketIn(t, tmp, "42")
	s := startServe(t, socket)
	remotetest.FillDisk(t, tmp)
	client := clientOf(t, socket)
	// Whether the request or the job fails, it says why, and the server lives.
	_, err := client.Run(t.Context(), &pb.RunRequest{Id: "job", Type: pb.RunRequest_script, CiScript: "echo hello"})
	if err != nil {
		require.ErrorContains(t, err, "no space left on device")
	} else {
		require.Contains(t, finalState(t, client, "job").GetMessage(), "no space left on device")
	}
	_, err = client.List(t.Context(), &pb.ListRequest{})
	require.NoError(t, err)
	require.NoError(t, s.stdin.Close())
	s.requireExit(t, 0, socket)
}
