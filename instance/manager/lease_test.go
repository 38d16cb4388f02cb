package manager_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

const bound10ms = 10 * time.Millisecond

// slots returns how many slots are taken.
func (r *running) slots() (n int) {
	r.t.Helper()
	st, err := r.Status(r.t.Context(), &pb.StatusRequest{})
	require.NoError(r.t, err)
	var all struct {
		Instances []struct{ Builds []any }
	}
	require.NoError(r.t, json.Unmarshal(st.GetJson(), &all))
	for _, vm := range all.Instances {
		n += len(vm.Builds)
	}
	return n
}

// reserve waits for a lease.
func (r *running) reserve(ctx context.Context, req *pb.ReserveRequest) (*pb.ReserveResponse, error) {
	stream, err := r.Reserve(ctx, req)
	for err == nil {
		var resp *pb.ReserveResponse
		if resp, err = stream.Recv(); resp.GetLease() != "" {
			return resp, nil
		}
	}
	return nil, err
}

// exec runs a command with an input.
func (r *running) exec(lease, command, input string) (stdout, stderr string, exit *pb.ExecResponse_Exit, err error) {
	stream, err := r.Exec(r.t.Context())
	require.NoError(r.t, err)
	// Send returns io.EOF if the call has ended; Recv tells why.
	start := &pb.ExecRequest_Start{Lease: lease, Command: command}
	_ = stream.Send(&pb.ExecRequest{What: &pb.ExecRequest_Start_{Start: start}})
	_ = stream.Send(&pb.ExecRequest{What: &pb.ExecRequest_Input{Input: []byte(input)}})
	_ = stream.Send(&pb.ExecRequest{What: &pb.ExecRequest_EndInput{EndInput: true}})
	var out, messages bytes.Buffer
	for {
		msg, err := stream.Recv()
		if err != nil {
			return out.String(), messages.String(), nil, err
		}
		out.Write(msg.GetStdout())
		messages.Write(msg.GetStderr())
		if msg.GetExit() != nil {
			_, err = stream.Recv()
			require.ErrorIs(r.t, err, io.EOF)
			return out.String(), messages.String(), msg.GetExit(), nil
		}
	}
}

func TestALeaseRunsCommandsUntilItIsReleased(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.capacity = 1
	m := f.start(t)
	resp, err := m.reserve(t.Context(), &pb.ReserveRequest{Lease: "lease-one", WithParent: true})
	require.NoError(t, err)
	require.Equal(t, []string{"lease-one", "vm-1", ""}, []string{resp.GetLease(), resp.GetInstance(), resp.GetMissing()})
	require.Equal(t, 1, m.slots())
	_, err = m.Get(t.Context(), &pb.GetRequest{Id: "lease.lease-one"}) // the key of its record
	require.Equal(t, codes.NotFound, status.Code(err), "a lease is no build: %v", err)
	again, err := m.reserve(t.Context(), &pb.ReserveRequest{Lease: "lease-one"})
	require.NoError(t, err, "the same name is the same lease")
	require.Equal(t, "lease-one", again.GetLease())

	out, messages, exit, err := m.exec("lease-one", "cat; echo said >&2; exit 9", "step runner: in\x00")
	require.NoError(t, err)
	require.Equal(t, []any{"step runner: in\x00", "said\n", int32(9), ""},
		[]any{out, messages, exit.GetCode(), exit.GetError()})
	_, _, exit, err = m.exec("lease-one", "kill -KILL $$", "")
	require.NoError(t, err)
	require.EqualValues(t, 137, exit.GetCode())

	// Another waits, and goes away; a third gets the slot.
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := m.Reserve(ctx, &pb.ReserveRequest{Lease: "lease-two"})
	require.NoError(t, err)
	waits, err := stream.Recv()
	require.NoError(t, err)
	require.Zero(t, waits.GetAhead())
	third, err := m.Reserve(t.Context(), &pb.ReserveRequest{})
	require.NoError(t, err)
	for waits.GetAhead() != 1 {
		waits, err = third.Recv()
		require.NoError(t, err)
	}
	cancel()
	for waits.GetAhead() != 0 {
		waits, err = third.Recv()
		require.NoError(t, err)
	}
	released, err := m.Release(t.Context(), &pb.ReleaseRequest{Lease: "lease-one"})
	require.NoError(t, err)
	require.Empty(t, released.GetLeft())
	for waits.GetLease() == "" {
		waits, err = third.Recv()
		require.NoError(t, err)
	}
	_, _, _, err = m.exec("lease-one", "true", "")
	require.Equal(t, codes.NotFound, status.Code(err), "%v", err)
	_, err = m.Release(t.Context(), &pb.ReleaseRequest{Lease: "lease-one"})
	require.NoError(t, err, "a lease that has ended")

	for lease, code := range map[string]codes.Code{"one": codes.InvalidArgument, "lease-A": codes.InvalidArgument} {
		_, err = m.reserve(t.Context(), &pb.ReserveRequest{Lease: lease})
		require.Equal(t, code, status.Code(err), "%v", err)
	}
	_, err = m.reserve(t.Context(), &pb.ReserveRequest{Instance: "vm-9"})
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
	_, _, _, err = m.exec(waits.GetLease(), "", "")
	require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
}

func TestALeaseEndsWithItsTimeAndWithItsHolder(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.start(t)
	_, err := m.reserve(t.Context(), &pb.ReserveRequest{Limit: durationpb.New(time.Millisecond)})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return m.slots() == 0 }, sshtest.Bound, bound10ms)
	list, err := m.List(t.Context(), &pb.ListRequest{})
	require.NoError(t, err)
	require.Empty(t, list.GetBuilds(), "a lease is no build")
}

// The error about each ended lease was "it was released, its time is up, or its VM has left", also if its holder had
// ended, and a command that ran failed for a reason of its connection.
func TestTheEndOfALeaseIsNamed(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	holder := exec.Command("cat")
	in, err := holder.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, holder.Start())
	m.m.ReserveHeld(t, "lease-held", holder.Process.Pid)
	stream, err := m.Exec(t.Context())
	require.NoError(t, err)
	start := &pb.ExecRequest_Start{Lease: "lease-held", Command: "echo; exec tail -f /dev/null"}
	require.NoError(t, stream.Send(&pb.ExecRequest{What: &pb.ExecRequest_Start_{Start: start}}))
	_, err = stream.Recv()
	require.NoError(t, err)
	require.NoError(t, in.Close())
	require.NoError(t, holder.Wait())
	msg, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, "the lease lease-held has ended: the process that held it has ended", msg.GetExit().GetError())

	_, err = m.reserve(t.Context(), &pb.ReserveRequest{Lease: "lease-given"})
	require.NoError(t, err)
	_, err = m.Release(t.Context(), &pb.ReleaseRequest{Lease: "lease-given"})
	require.NoError(t, err)
	for lease, why := range map[string]string{
		"lease-held":  "the process that held it has ended",
		"lease-given": "the lease was released",
		"lease-none":  "the lease was released, its time has passed, the process that held it has ended or the VM has left",
	} {
		_, _, _, err = m.exec(lease, "true", "")
		require.Equal(t, fmt.Sprintf("there is no lease %q: %s", lease, why), status.Convert(err).Message())
	}
}

// The record of a lease whose caller was gone before the store had answered stayed: the next manager held the slot for
// a lease that nobody knew, for a week.
func TestALeaseWhoseCallerGoesLeavesNoRecord(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	for i := range 20 {
		name := fmt.Sprintf("lease-%d", i)
		kept, err := m.m.ReserveAndGo(t, name)
		require.Equal(t, err == nil, kept, "%v", err) // a store may be faster than the caller
		_, err = m.Release(t.Context(), &pb.ReleaseRequest{Lease: name})
		require.NoError(t, err)
	}
	require.Zero(t, m.slots())
}

// A second caller that asked for a lease by its name, and was gone before it was told, ended the lease for the first.
func TestALeaseOutlivesACallerThatAsksForItByItsNameAndGoes(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	_, err := m.reserve(t.Context(), &pb.ReserveRequest{Lease: "lease-one"})
	require.NoError(t, err)
	for range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		_, err = m.Reserve(ctx, &pb.ReserveRequest{Lease: "lease-one"})
		cancel()
		require.NoError(t, err)
	}
	every := time.NewTicker(bound10ms)
	defer every.Stop()
	// Not require.Never, which may still ask when the test has ended.
	for end := time.Now().Add(time.Second); time.Now().Before(end); <-every.C {
		require.NotZero(t, m.slots())
	}
	_, _, exit, err := m.exec("lease-one", "exit 9", "")
	require.NoError(t, err)
	require.EqualValues(t, 9, exit.GetCode())
}

func TestALeaseOutlivesItsManagerAndItsCommandsDoNot(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.start(t)
	for _, name := range []string{"lease-one", "lease-two"} {
		_, err := m.reserve(t.Context(), &pb.ReserveRequest{Lease: name})
		require.NoError(t, err)
	}
	stream, err := m.Exec(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&pb.ExecRequest{What: &pb.ExecRequest_Start_{Start: &pb.ExecRequest_Start{
		Lease: "lease-one", Command: "echo up; exec sleep 600",
	}}}))
	msg, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, "up\n", string(msg.GetStdout()))
	require.NoError(t, m.m.Shutdown(sshtest.Within(t)))
	_, err = stream.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	m.stop()

	m = f.start(t)
	require.Equal(t, 2, m.slots())
	out, _, exit, err := m.exec("lease-one", "echo again", "")
	require.NoError(t, err)
	require.Equal(t, "again\n", out)
	require.Zero(t, exit.GetCode())
	_, err = m.Release(t.Context(), &pb.ReleaseRequest{Lease: "lease-two"})
	require.NoError(t, err)
	m.stop()
	m = f.start(t)
	require.Equal(t, 1, m.slots(), "a lease that was released stays so")
}

// A call that came while the manager ended was told that the lease had ended. Its record stayed, and the next manager
// held the slot until the limit of the lease.
func TestAReleaseThatAManagerLeavesToTheNextIsRefused(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.start(t)
	_, err := m.reserve(t.Context(), &pb.ReserveRequest{Lease: "lease-one"})
	require.NoError(t, err)
	m.stop()
	err = m.m.Release(t.Context(), "lease-one")
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	m = f.start(t)
	require.Equal(t, 1, m.slots())
	_, err = m.Release(t.Context(), &pb.ReleaseRequest{Lease: "lease-one"})
	require.NoError(t, err)
	require.Zero(t, m.slots())
}

// A caller that is gone is noticed, whatever its command does.
func TestACommandEndsWithItsCall(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.start(t)
	resp, err := m.reserve(t.Context(), &pb.ReserveRequest{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := m.Exec(ctx)
	require.NoError(t, err)
	require.NoError(t, stream.Send(&pb.ExecRequest{What: &pb.ExecRequest_Start_{Start: &pb.ExecRequest_Start{
		Lease: resp.GetLease(), Command: "trap 'echo int' INT; trap 'touch " + f.tmp + "/gone; exit' TERM; echo up; " +
			"while :; do sleep 0.01; done",
	}}}))
	expect := func(text string) {
		msg, err := stream.Recv()
		require.NoError(t, err)
		require.Equal(t, text, string(msg.GetStdout()))
	}
	expect("up\n")
	unread := &pb.ExecRequest_Input{Input: make([]byte, 3<<20)}
	require.NoError(t, stream.Send(&pb.ExecRequest{What: unread}))
	require.NoError(t, stream.Send(&pb.ExecRequest{What: &pb.ExecRequest_Signal{Signal: "INT"}}))
	expect("int\n")
	cancel()
	_, err = stream.Recv()
	require.True(t, errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled)
	require.Eventually(t, func() bool {
		out, _, _, err := m.exec(resp.GetLease(), "ls "+f.tmp+"/gone", "")
		return err == nil && out != ""
	}, sshtest.Bound, bound10ms)
}
