package bench

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// pricedManager is a manager with a queue and an embedded VM, a process of its own, and a client of it.
type pricedManager struct {
	pb.ManagerClient
	b   *testing.B
	pid int
	end func()
}

// startManager starts one of a commit. The end of the benchmark ends it, or its function end.
func (p *priceRig) startManager(b *testing.B, c pricedCommit, capacity int) *pricedManager {
	b.Helper()
	dir, err := os.MkdirTemp(p.home, "m") //nolint:usetesting // where the user can go, and short
	require.NoError(b, err)
	if p.user != nil {
		require.NoError(b, os.Chown(dir, int(p.user.Uid), int(p.user.Gid)))
	}
	socket := filepath.Join(dir, "m.sock")
	cmd := p.command(b.Context(), c.manager, "manager", "--state", filepath.Join(dir, "state"), "--socket", socket,
		"--capacity", strconv.Itoa(capacity))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	var said sshtest.Log
	cmd.Stderr = &said
	require.NoError(b, cmd.Start())
	var conn *grpc.ClientConn
	m := &pricedManager{b: b, pid: cmd.Process.Pid, end: sync.OnceFunc(func() {
		if conn != nil {
			_ = conn.Close() // its calls have returned
		}
		_ = cmd.Cancel() // fails only if it has ended
		_ = cmd.Wait()   // it has done its work
	})}
	b.Cleanup(m.end)
	require.Eventually(b, func() bool {
		if !sshtest.Runs(m.pid) {
			return true
		}
		var probe net.Conn
		if probe, err = net.Dial("unix", socket); err == nil {
			probe.Close()
		}
		return err == nil
	}, sshtest.Bound, tick, "the manager does not listen: %s", &said)
	require.NoError(b, err, &said)
	conn, err = pb.Dial(socket)
	require.NoError(b, err)
	m.ManagerClient = pb.NewManagerClient(conn)
	return m
}

// embeddedID is the name of the VM that is embedded in the program.
var embeddedID = []string{"embedded"}

// run queues n trivial builds while the VM takes none, and returns how many ended in a second after the first. All must
// succeed.
func (m *pricedManager) run(n int) (perSecond float64, err error) {
	ctx := m.b.Context()
	if _, err := m.Drain(ctx, &pb.DrainRequest{Instances: embeddedID}); err != nil {
		return 0, err
	}
	var ids []string
	var mu sync.Mutex // guards ids
	submit := func() error {
		r, err := m.Submit(ctx, &pb.SubmitRequest{Job: &stepmuxv1.Job{Script: "true"}})
		mu.Lock()
		defer mu.Unlock()
		ids = append(ids, r.GetId())
		return err
	}
	if err := withOpeners(n-1, submit); err != nil {
		return 0, err
	}
	if err := submit(); err != nil {
		return 0, err
	}
	if _, err := m.Undrain(ctx, &pb.UndrainRequest{Instances: embeddedID}); err != nil {
		return 0, err
	}
	slices.Reverse(ids) // the last in the queue first: a client that asked for the others would cost the manager time
	var first, last time.Time
	for _, id := range ids {
		b, err := m.wait(id)
		if err != nil {
			return 0, err
		}
		if r := b.GetResult(); r.GetReason() != "" {
			return 0, fmt.Errorf("build %s: %s: %s", id, r.GetReason(), r.GetMessage())
		}
		ended := b.GetEndedAt().AsTime()
		if first.IsZero() || ended.Before(first) {
			first = ended
		}
		if ended.After(last) {
			last = ended
		}
	}
	return float64(n-1) / max(last.Sub(first), time.Millisecond).Seconds(), nil
}

// wait returns a build once it has ended.
func (m *pricedManager) wait(id string) (*pb.Build, error) {
	stream, err := m.Follow(m.b.Context(), &pb.FollowRequest{Id: id, Follow: true})
	if err != nil {
		return nil, err
	}
	var ended *pb.Build
	for {
		msg, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && ended == nil:
			return nil, fmt.Errorf("build %s: the manager did not say how it ended", id)
		case errors.Is(err, io.EOF):
			return ended, nil
		case err != nil:
			return nil, err
		}
		ended = cmp.Or(msg.GetBuild(), ended)
	}
}

// queue measures builds a second from the queue of a manager, 16 at once, beside those of `stepmux run`.
func (p *priceRig) queue(b *testing.B) {
	n := sizes([]int{240}, 16)[0]
	now := p.commits[0]
	m := p.startManager(b, now, 16)
	r := inTurns(b, priced, []candidate{
		{name: "queue", run: func(r *results) error {
			rate, err := m.run(n)
			r.add("queue", rate)
			return err
		}},
		{name: "run", run: func(r *results) error {
			of, err := p.run(b.Context(), now, n, 16)
			r.add("run", of.perSecond)
			return err
		}},
	})
	r.medians("builds/s", "queue", "run")
	r.ratio("queue", "run", "run")
}

// idle measures the memory of a VM that has run builds and has nothing to do: its relay, and all that is kept ready for
// the next build.
func (p *priceRig) idle(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("part missing: root, as only root sees the memory of the VM's processes")
	}
	r := inTurns(b, costly, p.each(b, func(r *results, c pricedCommit) error {
		m := p.startManager(b, c, 1)
		defer m.end()
		if _, err := m.run(2); err != nil {
			return err
		}
		settle()
		all, err := readProcesses()
		if err != nil {
			return err
		}
		var vm []process
		for _, child := range all[m.pid] {
			vm = append(vm, all.family(child)...)
		}
		return r.memory(c.name, vm...)
	}))
	r.medians("PSS-MiB", "now", "base")
	r.ratio("now", "base", "base")
}
