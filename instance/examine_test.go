package instance_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/healthcheck"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/pool"
)

// told collects the calls of Group.OnHealth.
type told struct {
	mu  sync.Mutex
	all []string
}

func (h *told) note(id string, why error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	text := id + " is well"
	if why != nil {
		text = id + ": " + why.Error()
	}
	h.all = append(h.all, text)
}

func (h *told) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.all
	h.all = nil
	return all
}

// needs changes the limits of the instances.
func needs(t *testing.T, g *instance.Group, limits healthcheck.Limits) {
	t.Helper()
	all := g.Instances()
	for i := range all {
		all[i].Health = limits
	}
	require.NoError(t, g.Update(all))
}

func TestAVMThatLacksWhatBuildsNeedGetsNoneUntilItHasIt(t *testing.T) {
	t.Parallel()
	heard := &told{}
	in := newVM(t, sshtest.OpenSSH(t)).instance(t, 2)
	group, err := instance.NewGroup(in)
	require.NoError(t, err)
	p, err := instance.NewProvider(instance.Config{Group: group})
	require.NoError(t, err)
	group.OnHealth(heard.note)
	defer p.Close()
	ctx, id := sshtest.Within(t), in.ID
	require.NoError(t, p.Examine(ctx, id), "it is not connected, and so nothing is known")
	require.Nil(t, p.Stat().Instances[0].Health)
	requireSuccess(t, runAll(t, p, 1, "true"))
	require.NoError(t, p.Examine(ctx, id))
	require.Nil(t, p.Stat().Instances[0].Health, "it needs nothing")

	needs(t, group, healthcheck.Limits{FreeSpace: 1 << 60})
	require.NoError(t, p.Examine(ctx, id))
	stat := p.Stat().Instances[0]
	require.Equal(t, instance.Quarantined, stat.State)
	require.Contains(t, stat.Reason, "and the limit free_space is 1EiB")
	require.True(t, stat.RetryAt.IsZero(), "no build tries it")
	require.False(t, stat.Ill.IsZero())
	require.Positive(t, *stat.Health.FreeSpace)
	require.NoError(t, p.Examine(ctx, id))
	require.Equal(t, []string{id + ": " + stat.Reason}, heard.take(), "once")

	// A drain closes the connection, and with it the relay: the VM became well by that.
	require.NoError(t, group.Drain(id))
	closed := func() bool { return p.Stat().Instances[0].ConnState == pool.None }
	require.Eventually(t, closed, sshtest.Bound, time.Millisecond)
	require.NoError(t, p.Examine(ctx, id))
	require.True(t, closed())
	require.False(t, p.Stat().Instances[0].Ill.IsZero())
	require.NoError(t, group.Undrain(id))
	require.Empty(t, heard.take())

	done := make(chan struct{})
	go func() {
		defer close(done)
		requireSuccess(t, runAll(t, p, 1, "true"))
	}()
	require.Eventually(t, func() bool { return p.Stat().Waiting == 1 }, sshtest.Bound, time.Millisecond)
	require.Equal(t, 1, p.Stat().Held)
	needs(t, group, healthcheck.Default)
	require.NoError(t, p.Examine(ctx, id))
	<-done
	stat = p.Stat().Instances[0]
	require.Equal(t, instance.Ready, stat.State)
	require.True(t, stat.Ill.IsZero())
	require.Equal(t, []string{id + " is well"}, heard.take())
	require.ErrorIs(t, p.Examine(ctx, "other"), instance.ErrUnknown)
}

func TestAVMThatDoesNotAnswerIsReachedAgainByAnExamination(t *testing.T) {
	t.Parallel()
	server := sshtest.OpenSSH(t)
	proxy := sshtest.Proxy(t, server.Addr)
	heard := &told{}
	in := newVM(t, server).via(t, proxy.Addr()).instance(t, 2)
	group, err := instance.NewGroup(in)
	require.NoError(t, err)
	p, err := instance.NewProvider(instance.Config{Group: group})
	require.NoError(t, err)
	defer p.Close()
	ctx, id := sshtest.Within(t), in.ID
	requireSuccess(t, runAll(t, p, 1, "true"))
	group.OnHealth(heard.note)
	proxy.Cut()
	suspect := func() bool { return p.Stat().Instances[0].State == instance.Suspect }
	require.Eventually(t, suspect, sshtest.Bound, time.Millisecond)
	require.Len(t, heard.take(), 1)
	require.NoError(t, p.Examine(ctx, id))
	require.Equal(t, instance.Ready, p.Stat().Instances[0].State)
	require.Equal(t, []string{id + " is well"}, heard.take())
}
