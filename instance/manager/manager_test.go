package manager_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/control"
	"github.com/stepmux/stepmux/instance/manager"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/dockertest"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

func TestMain(m *testing.M) { dockertest.Main(m) }

// fleet is a VM, and the state directory of its managers.
type fleet struct {
	vm       *sshtest.Server
	more     *sshtest.Server // a second VM, or nil
	tmp, dir string
	capacity int
	change   func(*manager.Config)  // may be nil
	provide  func(*instance.Config) // may be nil
	opening  time.Duration          // bounds the opening of a manager, unless it is 0
	command  []string               // of the VMs; the command of this test binary if it is nil
	sent     *atomic.Int64          // counts the bytes that are sent to VMs, unless it is nil
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	return newFleetOn(t, sshtest.InProcess(t, embeddedvm.Config{}))
}

// newFleetOn is newFleet with a VM.
func newFleetOn(t *testing.T, vm *sshtest.Server) *fleet {
	t.Helper()
	return &fleet{vm: vm, tmp: sshtest.SocketDir(t), dir: filepath.Join(t.TempDir(), "state"), capacity: 2}
}

// countedConn counts the bytes that are written.
type countedConn struct {
	net.Conn
	sent *atomic.Int64
}

func (c countedConn) Write(data []byte) (int, error) {
	n, err := c.Conn.Write(data)
	c.sent.Add(int64(n))
	return n, err
}

// running is a manager and a client of it.
type running struct {
	pb.ManagerClient
	t      *testing.T
	m      *manager.Manager
	stop   func()
	socket string
}

// openGroup returns the VMs of the fleet, and a provider of its own.
func (f *fleet) openGroup(t *testing.T) (*instance.Group, *instance.Provider, error) {
	t.Helper()
	if f.command == nil {
		f.command = runnertest.Command(t)
	}
	var vms []instance.Instance
	for i, vm := range []*sshtest.Server{f.vm, f.more} {
		if vm == nil {
			break
		}
		one := instance.Instance{
			ID: fmt.Sprintf("vm-%d", i+1), Addr: vm.Addr, Capacity: f.capacity, Runner: f.command,
			Options: vmconfig.Options{TempDir: f.tmp},
			SSH: mux.Config{
				User: vm.User, Auth: []login.Auth{login.Key("of the test", vm.Signer)},
				HostKeys: login.PinnedHostKeys(vm.HostKey),
			},
		}
		if f.sent != nil {
			one.SSH.DialNet = func(ctx context.Context, addr string) (net.Conn, error) {
				conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
				return countedConn{conn, f.sent}, err
			}
		}
		vms = append(vms, one)
	}
	group := &instance.Group{}
	require.NoError(t, group.Update(vms))
	cfg := instance.Config{Group: group}
	if f.provide != nil {
		f.provide(&cfg)
	}
	provider, err := instance.NewProvider(cfg)
	return group, provider, err
}

// open opens a manager of the fleet and its config for it.
func (f *fleet) open(t *testing.T) (*manager.Manager, *instance.Provider, error) {
	t.Helper()
	group, provider, err := f.openGroup(t)
	require.NoError(t, err)
	cfg := manager.Config{Dir: f.dir, Provider: provider, Group: group, Linger: time.Minute, Version: "test"}
	if testing.Verbose() {
		cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	if f.change != nil {
		f.change(&cfg)
	}
	ctx := t.Context()
	if f.opening > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.opening)
		defer cancel()
	}
	m, err := manager.Open(ctx, cfg)
	if err != nil {
		_ = provider.Close()
	}
	return m, provider, err
}

// start starts a manager.
func (f *fleet) start(t *testing.T) *running {
	t.Helper()
	m, provider, err := f.open(t)
	require.NoError(t, err)
	path := filepath.Join(sshtest.SocketDir(t), "m.sock")
	listener, err := control.Listen(path, -1)
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() { _ = m.Serve(context.Background(), listener) })
	conn, err := pb.Dial(path)
	require.NoError(t, err)
	stop := sync.OnceFunc(func() {
		_ = conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), sshtest.Bound)
		defer cancel()
		require.NoError(t, m.Shutdown(ctx))
		require.ErrorIs(t, m.Err(), manager.ErrStopped)
		serving.Wait()
		require.NoError(t, provider.Close())
	})
	t.Cleanup(stop)
	return &running{pb.NewManagerClient(conn), t, m, stop, path}
}

// submit queues a script.
func (r *running) submit(script string) string {
	r.t.Helper()
	return r.submitJob(job(script))
}

func (r *running) submitJob(j *pb.SubmitRequest) string {
	r.t.Helper()
	resp, err := r.Submit(r.t.Context(), j)
	require.NoError(r.t, err)
	return resp.GetId()
}

func job(script string) *pb.SubmitRequest {
	return &pb.SubmitRequest{Job: &stepmuxv1.Job{
		Steps:     []byte("run:\n- name: s\n  script: |\n    " + strings.ReplaceAll(script, "\n", "\n    ") + "\n"),
		StepsFile: "job.yml", Variables: []*stepmuxv1.Variable{{Key: "TOKEN", Value: "a-hidden-value", Masked: true}},
	}}
}

func keyed(key string, req *pb.SubmitRequest) *pb.SubmitRequest {
	req.Key = key
	return req
}

// wait follows a build from an offset to its end, and returns its log.
func (r *running) wait(id string, offset int64) (string, *pb.Build) {
	r.t.Helper()
	var text bytes.Buffer
	for {
		stream, err := r.Follow(r.t.Context(), &pb.FollowRequest{Id: id, Offset: offset + int64(text.Len()), Follow: true})
		var b *pb.Build
		if err == nil {
			b, err = r.readOn(stream, offset, &text)
		}
		// As stepmux logs -f does: on a busy machine a NATS server may be late.
		if status.Code(err) != codes.Unavailable {
			require.NoError(r.t, err)
			return text.String(), b
		}
	}
}

// rest reads a stream to the end of the build, and returns its text, which begins at an offset.
func (r *running) rest(stream grpc.ServerStreamingClient[pb.FollowResponse], offset int64) (string, *pb.Build) {
	r.t.Helper()
	var text bytes.Buffer
	b, err := r.readOn(stream, offset, &text)
	require.NoError(r.t, err)
	return text.String(), b
}

// readOn reads a stream to the end of the build. The text begins at an offset and has what was read before.
func (r *running) readOn(
	stream grpc.ServerStreamingClient[pb.FollowResponse], offset int64, text *bytes.Buffer,
) (*pb.Build, error) {
	r.t.Helper()
	for {
		msg, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		require.Equal(r.t, offset+int64(text.Len()), msg.GetOffset())
		text.Write(msg.GetText())
		if msg.GetBuild() != nil {
			return msg.GetBuild(), nil
		}
	}
}

// await reads the log of a build until it has a text.
func (r *running) await(id, text string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), sshtest.Bound)
	defer cancel()
	stream, err := r.Follow(ctx, &pb.FollowRequest{Id: id, Follow: true})
	require.NoError(r.t, err)
	var got strings.Builder
	for !strings.Contains(got.String(), text) {
		msg, err := stream.Recv()
		require.NoError(r.t, err, "the log has no %q: %s", text, got.String())
		require.Nil(r.t, msg.GetBuild(), "the log has no %q: %s", text, got.String())
		got.Write(msg.GetText())
	}
}

// gate is where scripts wait until open is called.
func gate(t *testing.T) (wait string, open func()) {
	return remotetest.Gate(t, filepath.Join(t.TempDir(), "gate"))
}

func TestABuildGoesThroughTheQueue(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.start(t)
	wait, open := gate(t)
	good := m.submit("echo one\n" + wait + "\necho two $CI_JOB_ID")
	m.await(good, "one\n")
	bad := m.submit("echo bad; exit 7")
	text, b := m.wait(bad, 0)
	require.Equal(t, "bad\n", text)
	require.Equal(t, pb.Build_ended, b.GetPhase())
	require.Equal(t, "script_failure", b.GetResult().GetReason())
	require.EqualValues(t, 7, b.GetResult().GetExitCode())
	require.Equal(t, "vm-1", b.GetInstance())
	require.Equal(t, "job.yml", b.GetStepsFile())

	b, err := m.Get(t.Context(), &pb.GetRequest{Id: good})
	require.NoError(t, err)
	require.Equal(t, pb.Build_running, b.GetPhase())
	open()
	text, b = m.wait(good, 4)
	require.Equal(t, "two "+good+"\n", text, "from its offset")
	require.Empty(t, b.GetResult().GetReason())
	require.Empty(t, b.GetResult().GetLeft())
	require.Empty(t, b.GetResult().GetMessage())

	require.Eventually(t, func() bool { return m.m.Readers(t) == 0 }, sshtest.Bound, time.Millisecond,
		"readers of logs leave nothing in the store")

	all, err := m.List(t.Context(), &pb.ListRequest{})
	require.NoError(t, err)
	require.Zero(t, all.GetQueued(), "whether or not their requests have left the queue")
	require.Len(t, all.GetBuilds(), 2)
	require.Equal(t, good, all.GetBuilds()[0].GetId(), "the latest first")
	require.Zero(t, all.GetRunning())
	_, err = m.Get(t.Context(), &pb.GetRequest{Id: "17-abcdef01"})
	require.Equal(t, codes.NotFound, status.Code(err), "%v", err)
	_, err = m.Get(t.Context(), &pb.GetRequest{Id: "no > id *"})
	require.Equal(t, codes.NotFound, status.Code(err), "%v", err)
	m.stop()
	require.NotContains(t, everythingIn(t, f.dir), "a-hidden-value", "secrets are sealed")
}

// everythingIn returns the text of all files below a directory.
func everythingIn(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		all.Write(text)
		return err
	}))
	require.NotZero(t, all.Len())
	return all.String()
}

// A message costs a sync.
func TestALogThatNothingWasWrittenToEndsWithoutAMessage(t *testing.T) {
	f := newFleet(t)
	m := f.start(t)
	for range 3 {
		stream, err := m.Follow(t.Context(), &pb.FollowRequest{Id: m.submit("true"), Follow: true})
		require.NoError(t, err)
		text, b := m.rest(stream, 0)
		require.Empty(t, text)
		require.Empty(t, b.GetResult().GetReason())
	}
	require.Zero(t, m.m.Pieces(t))
}

func TestTheSameRequestTwiceIsOneBuild(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	first, err := m.Submit(t.Context(), keyed("k-1", job("echo x")))
	require.NoError(t, err)
	again, err := m.Submit(t.Context(), keyed("k-1", job("echo x")))
	require.NoError(t, err)
	require.Equal(t, first.GetId(), again.GetId())
	text, _ := m.wait(first.GetId(), 0)
	require.Equal(t, "x\n", text)
	for _, bad := range []*pb.SubmitRequest{
		keyed("a b", job("x")), {}, {Job: &stepmuxv1.Job{Steps: make([]byte, 4<<20+1)}},
	} {
		_, err = m.Submit(t.Context(), bad)
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
	}
}

func TestBuildsAreCanceledWhereverTheyAre(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.capacity = 1
	m := f.start(t)
	runs := m.submit("echo begun; exec sleep 1000")
	m.await(runs, "begun\n")
	var waiting []string
	for range 40 {
		waiting = append(waiting, m.submit("echo never"))
	}
	list, err := m.List(t.Context(), &pb.ListRequest{Phase: pb.Build_queued, Limit: 5})
	require.NoError(t, err)
	require.EqualValues(t, 40, list.GetQueued())
	require.EqualValues(t, 1, list.GetRunning())
	require.Len(t, list.GetBuilds(), 5)
	require.Equal(t, waiting[0], list.GetBuilds()[0].GetId(), "the oldest first")
	for _, id := range append(waiting, runs) { // the running one last: its slot is the next one's
		_, err := m.Cancel(t.Context(), &pb.CancelRequest{Id: id})
		require.NoError(t, err)
	}
	for _, id := range append([]string{runs}, waiting...) {
		text, b := m.wait(id, 0)
		require.Equal(t, "job_canceled", b.GetResult().GetReason(), id)
		require.True(t, b.GetCanceled())
		require.NotContains(t, text, "never")
	}
	_, err = m.Cancel(t.Context(), &pb.CancelRequest{Id: runs})
	require.NoError(t, err, "one that has ended is left as it is")
	timed := job("echo begun; exec sleep 1000")
	timed.Job.Timeout = durationpb.New(time.Second / 10)
	id := m.submitJob(timed)
	_, b := m.wait(id, 0)
	require.Equal(t, "job_execution_timeout", b.GetResult().GetReason())
}

// A build whose goroutine came late was overtaken by the next one of the queue.
func TestBuildsWaitForASlotInTheOrderOfTheQueue(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.more, f.change = f.vm, labelled
	m := f.start(t)
	_, err := m.Drain(t.Context(), &pb.DrainRequest{Instances: []string{"vm-1"}})
	require.NoError(t, err)
	for range 10 {
		var ids []string
		for range 16 {
			ids = append(ids, m.submitLabelled("true"))
		}
		require.Eventually(t, func() bool { return len(m.m.Waiting()) == len(ids) }, sshtest.Bound, time.Millisecond)
		require.Equal(t, ids, m.m.Waiting())
		for _, id := range ids {
			_, err := m.Cancel(t.Context(), &pb.CancelRequest{Id: id})
			require.NoError(t, err)
			m.wait(id, 0)
		}
	}
}

// Builds that end leave the queue together, but for one before them that runs.
func TestRequestsOfBuildsThatHaveEndedLeaveTheQueue(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.start(t)
	wait, open := gate(t)
	m.wait(m.submit("true"), 0)
	held := m.submit("echo begun\n" + wait + "\necho done")
	for range 5 {
		m.wait(m.submit("true"), 0)
	}
	queued, err := m.List(t.Context(), &pb.ListRequest{Phase: pb.Build_queued})
	require.NoError(t, err)
	require.Zero(t, queued.GetQueued())
	require.Empty(t, queued.GetBuilds())
	require.Eventually(t, func() bool { return m.m.Requests(t) == 1 }, sshtest.Bound, time.Millisecond)
	m.stop()

	m = f.start(t)
	open()
	text, b := m.wait(held, 0)
	require.Equal(t, "begun\ndone\n", text, "its request has stayed, so the next manager has resumed it")
	require.Empty(t, b.GetResult().GetReason())
	for range 5 {
		m.wait(m.submit("true"), 0)
	}
	require.Eventually(t, func() bool { return m.m.Requests(t) == 0 }, sshtest.Bound, time.Millisecond)
}

// A manager may be away for longer than records are kept.
func TestABuildWhoseRecordIsNotKeptAnyMoreDoesNotRunAgain(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.change = func(cfg *manager.Config) { cfg.Keep = time.Second }
	m := f.start(t)
	wait, open := gate(t)
	held := m.submit("echo begun\n" + wait)
	m.await(held, "begun\n")
	ledger := filepath.Join(t.TempDir(), "ledger")
	m.wait(m.submit("echo run >>"+ledger), 0) // its request waits for that of the build before it
	ended := time.Now()
	behind := m.submit(wait)
	m.stop()
	require.Eventually(t, func() bool { return time.Since(ended) > 2*time.Second }, sshtest.Bound, 10*time.Millisecond)

	m = f.start(t)
	open()
	m.wait(held, 0)
	m.wait(behind, 0)
	require.Eventually(t, func() bool { return m.m.Requests(t) == 0 }, sshtest.Bound, time.Millisecond)
	ran, err := os.ReadFile(ledger)
	require.NoError(t, err)
	require.Equal(t, "run\n", string(ran))
}

// Each round is another manager on the same state.
//
//stepmux:reliability promises | A manager that ends or is killed loses no build, runs none twice, and leaves no gap in
//stepmux:more a log
//stepmux:with cmd/stepmux.TestAManagerThatIsKilledLosesNothing, instance.TestABuildGoesOnInAnotherProcess
//stepmux:with connector/buildlog.TestALogGoesOnWhereAnotherOneStopped
func TestARestartLosesNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	wait, open := gate(t)
	ledger := filepath.Join(t.TempDir(), "ledger")
	m := f.start(t)
	var ids []string
	for i := range 8 {
		ids = append(ids, m.submit(fmt.Sprintf("echo run %d >>%s\necho begun\n%s\necho done\nexit %d", i, ledger, wait, i)))
	}
	m.await(ids[0], "begun\n")
	m.await(ids[1], "begun\n")
	_, err := m.Drain(t.Context(), &pb.DrainRequest{Instances: []string{"vm-1"}, Note: "disk"})
	require.NoError(t, err)
	m.stop()

	m = f.start(t)
	b, err := m.Get(t.Context(), &pb.GetRequest{Id: ids[0]})
	require.NoError(t, err)
	require.Equal(t, pb.Build_running, b.GetPhase())
	_, err = m.Cancel(t.Context(), &pb.CancelRequest{Id: ids[7]})
	require.NoError(t, err)
	st, err := m.Status(t.Context(), &pb.StatusRequest{})
	require.NoError(t, err)
	require.Contains(t, string(st.GetJson()), `"state":"draining","reason":"disk"`, "a drain outlives the manager")
	m.stop()

	open()
	m = f.start(t)
	text, b := m.wait(ids[0], 0)
	require.Equal(t, "begun\ndone\n", text)
	require.Empty(t, b.GetResult().GetReason())
	_, err = m.Undrain(t.Context(), &pb.UndrainRequest{Instances: []string{"vm-1"}})
	require.NoError(t, err)
	for i, id := range ids[:7] {
		text, b := m.wait(id, 0)
		require.Equal(t, "begun\ndone\n", text, "build %d", i)
		require.EqualValues(t, i, b.GetResult().GetExitCode())
	}
	_, b = m.wait(ids[7], 0)
	require.Equal(t, "job_canceled", b.GetResult().GetReason())
	ran, err := os.ReadFile(ledger)
	require.NoError(t, err)
	for i := range 7 {
		require.Equal(t, 1, strings.Count(string(ran), fmt.Sprintf("run %d\n", i)), "%s", ran)
	}
	require.NotContains(t, string(ran), "run 7")
	_, err = m.Drain(t.Context(), &pb.DrainRequest{Instances: []string{"vm-2"}})
	require.Equal(t, codes.NotFound, status.Code(err), "%v", err)
}

func TestBadStateDirectoriesAreRefused(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.start(t)
	_, _, err := f.open(t)
	require.ErrorContains(t, err, "another manager uses it")
	m.stop()
	key := filepath.Join(f.dir, "key")
	good, err := os.ReadFile(key)
	require.NoError(t, err)
	refused := func(message string, change func()) {
		t.Helper()
		change()
		_, _, err := f.open(t)
		require.ErrorContains(t, err, message)
		require.NoError(t, os.RemoveAll(key))
		require.NoError(t, os.WriteFile(key, good, 0o600))
	}
	refused("sealed with another key", func() { require.NoError(t, os.Remove(key)) })
	refused("can be read by others", func() { require.NoError(t, os.Chmod(key, 0o644)) })
	refused("is not a file of 32 bytes", func() { require.NoError(t, os.Truncate(key, 31)) })
	f.start(t)
}

// onSmallDisk starts a manager with its state on a disk of 16 MiB. ended waits for its end and stops the rest.
func (f *fleet) onSmallDisk(t *testing.T) (m *running, ended func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small disk")
	}
	require.NoError(t, os.Mkdir(f.dir, 0o700))
	require.NoError(t, unix.Mount("tmpfs", f.dir, "tmpfs", 0, "size=16m"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(f.dir, unix.MNT_DETACH)) })
	opened, provider, err := f.open(t)
	require.NoError(t, err)
	path := filepath.Join(sshtest.SocketDir(t), "m.sock")
	listener, err := control.Listen(path, -1)
	require.NoError(t, err)
	go func() { _ = opened.Serve(context.Background(), listener) }() // until Shutdown
	conn, err := pb.Dial(path)
	require.NoError(t, err)
	return &running{ManagerClient: pb.NewManagerClient(conn), t: t, m: opened}, func() {
		t.Helper()
		select {
		case <-opened.Done():
		case <-time.After(sshtest.Bound): //nolint:forbidigo // a test's bound
			require.FailNow(t, "the manager goes on")
		}
		require.ErrorContains(t, opened.Err(), "no space left on device")
		require.NoError(t, opened.Shutdown(t.Context()))
		require.NoError(t, conn.Close())
		require.NoError(t, provider.Close())
	}
}

// A disk that is full ends the manager. Its builds go on, and the next manager has all of their logs.
//
//stepmux:reliability promises | A full disk ends the manager but no build: the next manager has the complete log
func TestAFullDiskEndsTheManagerAndNoBuild(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m, ended := f.onSmallDisk(t)
	const size = 24_000_000
	id := m.submit(fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x", size))
	ended()
	require.NoError(t, unix.Mount("", f.dir, "", unix.MS_REMOUNT, "size=64m"))
	text, b := f.start(t).wait(id, 0)
	require.Empty(t, b.GetResult().GetReason(), b.GetResult().GetMessage())
	require.Equal(t, size, strings.Count(text, "x"))
}

// Builds that ended when their results could not be kept were taken out of the queue, and were lost.
func TestResultsThatAFullDiskDidNotKeepAreFoundLater(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.capacity = 14
	m, ended := f.onSmallDisk(t)
	wait, open := gate(t)
	var ids []string
	for range f.capacity {
		id := m.submit("echo on\n" + wait)
		m.await(id, "on\n")
		ids = append(ids, id)
	}
	full := filepath.Join(f.dir, "full")
	file, err := os.Create(full)
	require.NoError(t, err)
	for _, piece := range []int{1 << 16, 1 << 12, 1} {
		for err = nil; err == nil; _, err = file.Write(make([]byte, piece)) {
		}
	}
	require.ErrorIs(t, err, unix.ENOSPC)
	require.NoError(t, file.Close())
	open()
	ended()
	require.NoError(t, os.Remove(full))
	m = f.start(t)
	for _, id := range ids {
		_, b := m.wait(id, 0)
		require.Empty(t, b.GetResult().GetReason(), b.GetResult().GetMessage())
	}
}

func TestAManagerNeedsAStateDirectoryThatItCanWrite(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	require.NoError(t, os.WriteFile(f.dir, nil, 0o600))
	_, _, err := f.open(t)
	require.ErrorContains(t, err, "not a directory")
}

// A program that asked for a lease of a nanosecond was ended by a panic after Open had returned.
func TestALeaseThatIsTooShortIsRefused(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	for _, lease := range []time.Duration{1, -time.Second} {
		f.change = func(cfg *manager.Config) { cfg.Lease = lease }
		_, _, err := f.open(t)
		require.ErrorContains(t, err, "a lease lasts for a second at least")
	}
}

// The lock of the state directory did not follow it: "too many levels of symbolic links".
func TestTheStateDirectoryMayBeALink(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.start(t).stop()
	target := f.dir
	f.dir = filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(target, f.dir))
	f.start(t)
	f.dir = target
	_, _, err := f.open(t)
	require.ErrorContains(t, err, "another manager uses it")
}

// Every build pays for the start of its step runner, so a relay starts the one that lingers itself, ahead of its build.
func TestStepRunnersThatLingerArePrestarted(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	script := "tr '\\0' ' ' </proc/$(cut -d' ' -f4 /proc/$PPID/stat)/cmdline"
	text, _ := m.wait(m.submit(script), 0)
	require.Contains(t, text, " --detached", "the relay's child is the step runner")
	require.Eventually(t, func() bool {
		text, b := m.wait(m.submit(script), 0)
		require.Empty(t, b.GetResult().GetReason(), b.GetResult().GetMessage())
		return strings.Contains(text, " --socket - ")
	}, sshtest.Bound, time.Millisecond)
}

// Each build left a context that the manager held until its end.
func TestAManagerHoldsNothingOfABuildThatHasEnded(t *testing.T) {
	holds := manager.CountLife(t)
	m := newFleet(t).start(t)
	m.wait(m.submit("true"), 0)
	before := holds()
	for range 8 {
		m.wait(m.submit("true"), 0)
	}
	require.Eventually(t, func() bool { return holds() <= before }, sshtest.Bound, 10*time.Millisecond)
}
