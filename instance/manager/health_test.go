package manager_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/elastic"
	"github.com/stepmux/stepmux/instance/elastic/source"
	"github.com/stepmux/stepmux/instance/healthcheck"
	"github.com/stepmux/stepmux/instance/manager"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// events returns the events that the manager has.
func (r *running) events(req *pb.EventsRequest) (all []*pb.Event) {
	r.t.Helper()
	stream, err := r.Events(r.t.Context(), req)
	require.NoError(r.t, err)
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(r.t, err)
		all = append(all, e)
	}
}

func kindsOf(all []*pb.Event) (kinds []string) {
	for _, e := range all {
		kinds = append(kinds, e.GetKind())
	}
	return kinds
}

func TestAVMThatIsIllKeepsItsBuildsAndIsReplaced(t *testing.T) {
	t.Parallel()
	f := newElasticFleet(t, 2, nil)
	change := f.change
	f.change = func(cfg *manager.Config) {
		change(cfg)
		cfg.HealthPeriod = time.Second / 20
		g := &cfg.VMGroups[0]
		g.Policy.UnhealthyTime = time.Second
		g.Policy.Rules = []elastic.Rule{{IdleCount: 1, IdleTime: time.Hour}}
		made := g.Instances
		g.Instances = func(ctx context.Context, vms []source.VM) ([]instance.Instance, error) {
			all, err := made(ctx, vms)
			for i := range all {
				if all[i].ID == "server-1" {
					all[i].Health = healthcheck.Limits{FreeSpace: 1 << 60}
				}
			}
			return all, err
		}
	}
	m := f.start(t)
	wait, open := gate(t)
	id := m.submit("echo begun\n" + wait + "\necho done")
	m.await(id, "begun")
	_, other := m.wait(m.submit("true"), 0) // perhaps there, before it was found ill, or on another
	require.Empty(t, other.GetResult().GetReason(), other.GetResult().GetMessage())
	ill := func() (found []*pb.Event) { return m.events(&pb.EventsRequest{About: []string{"server-1"}}) }
	require.Eventually(t, func() bool { return len(kindsOf(ill())) > 1 }, sshtest.Bound, time.Second/10)
	_, other = m.wait(m.submit("true"), 0)
	require.Equal(t, "server-2", other.GetInstance())
	open()
	text, b := m.wait(id, 0)
	require.Empty(t, b.GetResult().GetReason(), b.GetResult().GetMessage())
	require.Contains(t, text, "done")
	require.Equal(t, "server-1", b.GetInstance())
	require.Eventually(t, func() bool { return len(ill()) >= 5 }, sshtest.Bound, time.Second/10)
	all := ill()
	if all[0].GetKind() == "ill" { // it was examined before its group saw that it is ready
		all[0], all[1] = all[1], all[0]
	}
	require.Equal(t, []string{"ready", "ill", "drain", "delete", "gone"}, kindsOf(all))
	require.Contains(t, all[1].GetNote(), "and the limit free_space is 1EiB")
	require.Equal(t, "small", all[1].GetGroup())
	require.Regexp(t, "^has been ill for ", all[3].GetNote())
	require.Empty(t, m.events(&pb.EventsRequest{Since: timestamppb.New(time.Now().Add(time.Hour))}))
	require.NotEmpty(t, m.events(&pb.EventsRequest{About: []string{"small"}}))
	require.Equal(t, "server-2", m.status().Instances[0].ID)

	m.stop()
	f.change = change
	m = f.start(t)
	kept := m.events(&pb.EventsRequest{About: []string{"server-1"}})
	require.ElementsMatch(t, kindsOf(all), kindsOf(kept), "they are kept")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := m.Events(ctx, &pb.EventsRequest{About: []string{"vm-9"}, Follow: true})
	require.NoError(t, err)
	m.m.Tell("ill", "vm-9", "says the test")
	e, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, "says the test", e.GetNote())
	backlog, err := m.m.Backlog(t.Context())
	require.NoError(t, err)
	require.Equal(t, uint64(1), backlog.Events["ill"])
}
