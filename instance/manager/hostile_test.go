package manager_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/place/docker"
	"github.com/stepmux/stepmux/instance/batch"
	"github.com/stepmux/stepmux/instance/manager"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

//stepmux:faults input | A request of 64 MiB, or a client of a manager that never reads
//stepmux:with instance/manager.TestAClientThatNeverReadsHoldsUpNothing
//stepmux:with instance/manager.TestBrowsersThatDoNotReadAreGivenUp
func TestHugeRequestsAreRefusedAndCostNothing(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	_, err := m.Submit(t.Context(), &pb.SubmitRequest{Job: &stepmuxv1.Job{Steps: make([]byte, 64<<20)}})
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	_, err = m.Drain(t.Context(), &pb.DrainRequest{Instances: []string{"vm-1"}, Note: strings.Repeat("x", 2<<10)})
	require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
	text, _ := m.wait(m.submit("echo x"), 0)
	require.Equal(t, "x\n", text)
}

// Clients that follow a log and do not read hold up neither the build, nor others, nor the manager's end.
func TestAClientThatNeverReadsHoldsUpNothing(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	id := m.submit("head -c 20000000 /dev/zero | tr '\\0' x")
	stuck, err := m.Follow(t.Context(), &pb.FollowRequest{Id: id, Follow: true})
	require.NoError(t, err)
	_, err = m.Follow(t.Context(), &pb.FollowRequest{Id: id, Follow: true})
	require.NoError(t, err)
	text, b := m.wait(id, 0)
	require.Len(t, text, 20_000_000)
	require.Empty(t, b.GetResult().GetReason())
	late, _ := m.rest(stuck, 0)
	require.True(t, text == late, "it reads on after all: %d bytes of %d", len(late), len(text))
	m.stop()
}

func TestTwoManagersWithOneVMDoNotMeet(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	other := newFleetOn(t, f.vm)
	a, b := f.start(t), other.start(t)
	wait, open := gate(t)
	one, two := a.submit("echo a; "+wait), b.submit("echo b; "+wait)
	require.NotEqual(t, one, two)
	a.await(one, "a\n")
	b.await(two, "b\n")
	a.stop()
	open()
	text, end := b.wait(two, 0)
	require.Equal(t, "b\n", text)
	require.Empty(t, end.GetResult().GetReason(), "the end of one manager is not the other's")
	text, _ = f.start(t).wait(one, 0)
	require.Equal(t, "a\n", text)
}

func TestAReadOnlyStateIsAClearError(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.start(t)
	id := m.submit("echo x")
	m.wait(id, 0)
	m.stop()
	if os.Geteuid() == 0 {
		require.NoError(t, unix.Mount(f.dir, f.dir, "", unix.MS_BIND, ""))
		t.Cleanup(func() { require.NoError(t, unix.Unmount(f.dir, unix.MNT_DETACH)) })
		require.NoError(t, unix.Mount("", f.dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	} else {
		store := filepath.Join(f.dir, "jetstream", "jetstream")
		require.NoError(t, os.Chmod(store, 0o500))
		t.Cleanup(func() { require.NoError(t, os.Chmod(store, 0o700)) })
	}
	_, _, err := f.open(t)
	require.ErrorContains(t, err, "state directory "+f.dir)
	require.ErrorContains(t, err, "is not writable")
}

// The clock of the machine was set back by a day while a build with a timeout ran: its time is counted from the restart
// of the manager on, not from tomorrow.
//
//stepmux:faults input | A clock that is set back while a build with a timeout runs; two managers with one VM
//stepmux:with instance/manager.TestTwoManagersWithOneVMDoNotMeet
func TestAClockThatJumpsBackDoesNotLengthenABuild(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.start(t)
	timed := job("echo begun; exec sleep 1000")
	timed.Job.Timeout = durationpb.New(10 * time.Second) // time for all of this up to the restart
	id := m.submitJob(timed)
	m.await(id, "begun\n")
	m.m.SetStarted(t, id, time.Now().Add(24*time.Hour))
	m.stop()
	_, b := f.start(t).wait(id, 0)
	require.Equal(t, "job_execution_timeout", b.GetResult().GetReason())
}

// The clock was set back between the submit of a build and its slot, or that of a NATS server is ahead: the sum of the
// times that builds had waited went down, which a counter never does.
func TestABuildHasNotWaitedForLessThanNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	reports := make(chan batch.Report, 1)
	f.change = func(cfg *manager.Config) { cfg.OnEnd = func(r batch.Report) { reports <- r } }
	m := f.start(t)
	wait, open := gate(t)
	id := m.submit("echo on\n" + wait)
	m.await(id, "on\n")
	m.m.SetStarted(t, id, time.Now().Add(-time.Hour))
	open()
	report := <-reports
	require.Positive(t, report.Duration)
	require.Zero(t, report.Waited)
}

// Bytes of the store flip on the disk, or a file of it is cut off: no build runs twice, and none is lost in silence.
//
//stepmux:faults input | A manager's state with flipped bytes, or cut off; read-only, or that of another key
//stepmux:with instance/manager.TestAReadOnlyStateIsAClearError, instance/manager.TestBadStateDirectoriesAreRefused
func TestADamagedStoreIsTold(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.capacity = 1
	logger := slog.New(slog.DiscardHandler)
	// The build that runs waits for each manager, however busy the machine is.
	f.change = func(cfg *manager.Config) { cfg.Logger, cfg.Linger = logger, 10*time.Minute }
	ledger := filepath.Join(t.TempDir(), "ledger")
	m := f.start(t)
	wait, open := gate(t)
	runs := m.submit("echo x >>" + ledger + "; echo begun\n" + wait)
	m.await(runs, "begun\n")
	var ids []string
	for range 3 {
		ids = append(ids, m.submit("echo waits"))
	}
	m.stop()
	whole := filepath.Join(t.TempDir(), "whole")
	require.NoError(t, os.CopyFS(whole, os.DirFS(f.dir)))
	again := func(stream string, damage func(text []byte) []byte) {
		require.NoError(t, os.RemoveAll(f.dir))
		require.NoError(t, os.CopyFS(f.dir, os.DirFS(whole)))
		require.NoError(t, os.Chmod(filepath.Join(f.dir, "key"), 0o600))
		damageFile(t, filepath.Join(f.dir, "jetstream"), stream, damage)
	}
	flip := func(at float64) func([]byte) []byte {
		return func(text []byte) []byte {
			text[int(at*float64(len(text)))] ^= 0xff
			return text
		}
	}

	again("KV_STEPMUX_BUILDS", flip(0.5))
	_, _, err := f.open(t)
	require.ErrorContains(t, err, "1 build record damaged on the disk")

	again("KV_STEPMUX_BUILDS", func(text []byte) []byte { return text[:len(text)-30] })
	m = f.start(t)
	_, b := m.wait(runs, 0)
	require.Contains(t, b.GetResult().GetMessage(), "may have run: its record was damaged")
	m.stop()

	said := &bytes.Buffer{}
	logger = slog.New(slog.NewTextHandler(said, nil))
	again("STEPMUX_QUEUE", flip(0.1)) // of the build that runs
	open()
	m = f.start(t)
	text, b := m.wait(runs, 0)
	require.Contains(t, b.GetResult().GetMessage(), "its request was damaged")
	require.Equal(t, "begun\n", text)
	for _, id := range ids {
		_, b = m.wait(id, 0)
		require.Empty(t, b.GetResult().GetReason(), "the others go on")
	}
	m.stop()
	require.Contains(t, said.String(), "requests in the queue are damaged on the disk: their builds are lost")

	said.Reset()
	again("STEPMUX_QUEUE", func(text []byte) []byte { return text[:len(text)-30] })
	m = f.start(t)
	for _, id := range append([]string{runs}, ids[:2]...) {
		_, b = m.wait(id, 0)
		require.Empty(t, b.GetResult().GetReason(), "the others go on")
	}
	_, err = m.Get(t.Context(), &pb.GetRequest{Id: ids[2]})
	require.Equal(t, codes.NotFound, status.Code(err), "%v", err)
	m.stop()
	require.Contains(t, said.String(), "the end of the queue was cut off on the disk: the builds there are lost")
	require.Contains(t, said.String(), "requests=1")
	said.Reset()
	f.start(t).stop()
	require.NotContains(t, said.String(), "cut off", "it is told once")
	ran, err := os.ReadFile(ledger)
	require.NoError(t, err)
	require.Equal(t, "x\n", string(ran), "it ran once")
}

// damageFile changes the only block of a stream.
func damageFile(t *testing.T, dir, stream string, damage func(text []byte) []byte) {
	t.Helper()
	var blocks []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".blk") && strings.Contains(path, stream) {
			blocks = append(blocks, path)
		}
		return err
	}))
	require.Len(t, blocks, 1)
	text, err := os.ReadFile(blocks[0])
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(blocks[0], damage(text), 0o600))
}

// Builds that were refused when their turn came counted as builds that wait for a slot. After 16 of them the manager
// took no build from its queue any more.
func TestBuildsThatAreRefusedAtTheirTurnHoldUpNoOthers(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.change = func(cfg *manager.Config) {
		cfg.Place = func(own *place.Spec) (place.Description, error) {
			if own == nil {
				return nil, nil
			}
			return &docker.Spec{Spec: *own}, nil
		}
	}
	m := f.start(t)
	_, err := m.Drain(t.Context(), &pb.DrainRequest{Instances: []string{"vm-1"}})
	require.NoError(t, err)
	boxed := job("true")
	boxed.Job.Steps = append([]byte("image: alpine\n"), boxed.Job.Steps...)
	var ids []string
	for range 17 {
		ids = append(ids, m.submitJob(boxed))
	}
	m.stop()

	f.change = nil // this manager has no containers
	m = f.start(t)
	_, err = m.Undrain(t.Context(), &pb.UndrainRequest{Instances: []string{"vm-1"}})
	require.NoError(t, err)
	for _, id := range ids {
		_, b := m.wait(id, 0)
		require.Equal(t, "runner_configuration_error", b.GetResult().GetReason(), b.GetResult().GetMessage())
	}
	text, _ := m.wait(m.submit("echo on"), 0)
	require.Equal(t, "on\n", text)
}

// The record of a build with such a name was larger than the store takes: the build never ended, and could not be
// canceled.
func TestALongNameOfAFileIsRefused(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	long := job("true")
	long.Job.StepsFile = strings.Repeat("\x01", 1<<20)
	_, err := m.Submit(t.Context(), long)
	require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
	long.Job.StepsFile = strings.Repeat("x", 4095)
	id := m.submitJob(long)
	_, b := m.wait(id, 0)
	require.Empty(t, b.GetResult().GetReason(), b.GetResult().GetMessage())
}

// A manager that keeps builds for longer than the one before looked for the records of builds that had ended, and told
// of a queue that was cut off.
func TestBuildsThatAreNotKeptAnyMoreAreNoDamage(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.change = func(cfg *manager.Config) { cfg.Keep = time.Second }
	m := f.start(t)
	m.wait(m.submit("true"), 0)
	require.Eventually(t, func() bool {
		all, err := m.List(t.Context(), &pb.ListRequest{})
		return err == nil && len(all.GetBuilds()) == 0
	}, sshtest.Bound, 10*time.Millisecond)
	m.stop()
	var said bytes.Buffer
	f.change = func(cfg *manager.Config) { cfg.Keep, cfg.Logger = time.Hour, slog.New(slog.NewTextHandler(&said, nil)) }
	f.start(t).stop()
	require.NotContains(t, said.String(), "cut off")
}

// The disk took longer for a change of a build's record, such as a cancel, than the manager waited. It could not
// keep the result of the build then, and told those that followed its log that it had succeeded.
func TestABuildHasItsResultAfterAChangeThatWasNotAnswered(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	wait, open := gate(t)
	id := m.submit("echo on\n" + wait + "\nexit 3")
	m.await(id, "on\n")
	m.m.KeepUnanswered(t, id)
	ended := make(chan *pb.Build, 1)
	go func() {
		_, b := m.wait(id, 0)
		ended <- b
	}()
	open()
	b := <-ended
	require.Equal(t, pb.Build_ended, b.GetPhase())
	require.EqualValues(t, 3, b.GetResult().GetExitCode())
}

// A build's ID is part of a subject of the store, which closes the connection for one of more than 4 KiB. After a
// question about a build with such an ID, which a status page without a token takes from anybody, the manager could
// neither answer nor keep anything.
//
//stepmux:faults vulnerabilities | A client of a manager, or a reader of its page, asks for a build by an ID of 5 KB,
//stepmux:more which the store takes for an attack | there is no such build
func TestALongIDOfABuildIsNotFound(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	resp, _ := m.servePage(t, false).do("GET", "/builds/"+strings.Repeat("a", 5000), nil)
	require.Equal(t, http.StatusNotFound, resp.StatusCode)
	for _, id := range []string{strings.Repeat("a", 5000), "1-" + strings.Repeat("a", 5000), strings.Repeat("a.", 400)} {
		_, err := m.Get(t.Context(), &pb.GetRequest{Id: id})
		require.Equal(t, codes.NotFound, status.Code(err), "%v", err)
	}
	text, _ := m.wait(m.submit("echo x"), 0)
	require.Equal(t, "x\n", text)
}

// A manager whose connection to its own store was closed stayed, and could neither answer nor keep anything.
func TestAManagerThatHasLostItsStoreEnds(t *testing.T) {
	t.Parallel()
	m, provider, err := newFleet(t).open(t)
	require.NoError(t, err)
	m.CloseStore()
	ctx, cancel := context.WithTimeout(t.Context(), sshtest.Bound)
	defer cancel()
	select {
	case <-m.Done():
	case <-ctx.Done():
		require.Fail(t, "the manager goes on")
	}
	require.NoError(t, m.Shutdown(t.Context()))
	require.NoError(t, provider.Close())
	require.ErrorContains(t, m.Err(), "the connection to NATS was closed")
}

// Pieces that are too old, or too many, are removed while a slow reader is at the first of them. The reader waited for
// the last one for ever, and with it stepmux logs.
func TestAReaderOfALogThatIsRemovedMeanwhileEnds(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	const size = 12_000_000
	id := m.submit(fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x", size))
	m.wait(id, 0)
	ctx, cancel := context.WithTimeout(t.Context(), sshtest.Bound)
	defer cancel()
	read, err := m.m.ReadAndRemove(ctx, t, id)
	require.NoError(t, err)
	require.Less(t, read, size)
}

// The log of a build was shown as empty, without a word, once all of its pieces were removed.
func TestALogThatIsNotKeptAnyMoreIsTold(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	id := m.submit("echo one; echo two")
	m.wait(id, 0)
	m.m.RemoveLog(t, id)
	for _, follow := range []bool{false, true} {
		stream, err := m.Follow(t.Context(), &pb.FollowRequest{Id: id, Follow: follow})
		require.NoError(t, err)
		msg, err := stream.Recv()
		require.NoError(t, err)
		require.Equal(t, []int64{8, 8}, []int64{msg.GetMissing(), msg.GetOffset()})
		require.Empty(t, msg.GetText())
	}
}

// Who had cancelled a build, or drained a VM, was not kept if the caller went away at once.
func TestWhatACallerThatHasGoneHasDoneIsKept(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	id := m.submit("echo begun; exec sleep 1000")
	m.await(id, "begun\n")
	require.NoError(t, m.m.CancelAndGo(t, id))
	_, b := m.wait(id, 0)
	require.Equal(t, "job_canceled", b.GetResult().GetReason())
	m.m.DrainAndGo(t, "vm-1")
	said, err := m.Audit(t.Context(), &pb.AuditRequest{})
	require.NoError(t, err)
	var actions []string
	for _, e := range said.GetEntries() {
		actions = append(actions, e.GetAction()+" "+e.GetSubject())
	}
	require.Equal(t, []string{"drain vm-1", "cancel " + id}, actions)
	require.True(t, m.m.Settled(t, "vm-1"))
}

// Leases use up places among the records of builds. A list looked at each of them.
func TestAListCostsNoMoreForLeasesThatHaveEnded(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	first := m.submit("true")
	m.wait(first, 0)
	m.m.UsePlaces(t, 3000)
	second := m.submit("true")
	m.wait(second, 0)
	before := m.m.Asked()
	all, err := m.List(t.Context(), &pb.ListRequest{Phase: pb.Build_ended})
	require.NoError(t, err)
	require.Less(t, m.m.Asked()-before, uint64(100))
	require.Len(t, all.GetBuilds(), 2)
	require.Equal(t, second, all.GetBuilds()[0].GetId(), "the latest first")
}

// Who had asked for it was said to have canceled a build that had succeeded.
func TestACancellationWithoutEffectIsNoAction(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	id := m.submit("true")
	m.wait(id, 0)
	_, err := m.Cancel(t.Context(), &pb.CancelRequest{Id: id})
	require.NoError(t, err)
	said, err := m.Audit(t.Context(), &pb.AuditRequest{})
	require.NoError(t, err)
	require.Empty(t, said.GetEntries())
	b, err := m.Get(t.Context(), &pb.GetRequest{Id: id})
	require.NoError(t, err)
	require.Empty(t, b.GetResult().GetReason())
	require.False(t, b.GetCanceled())
}

// In a cluster, a reader that followed a log hung if the end of the log was removed before it got there.
func TestAReaderInAClusterReturnsWhenTheEndOfTheLogIsRemoved(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	m := c.member(t, c.nats)
	id := m.submit("echo on")
	m.wait(id, 0)
	ctx, cancel := context.WithTimeout(t.Context(), sshtest.Bound)
	defer cancel()
	require.NoError(t, m.m.FollowRemoved(ctx, t, id))
}
