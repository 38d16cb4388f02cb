package instance_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// Two providers, as in two processes, use one VM in turn.
func TestASharedInstanceIsUsedOnlyWhileItIsHeld(t *testing.T) {
	t.Parallel()
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	conns := func() int { return v.VM.Stat().Conns }
	groups, providers := make([]*instance.Group, 2), make([]*instance.Provider, 2)
	linger := time.Minute
	build := func(i int) *instance.Executor {
		e := providers[i].Executor(instance.Build{ID: "build-1", Linger: &linger, Secret: strings.Repeat("s", 43)})
		t.Cleanup(func() { require.NoError(t, e.Cleanup(context.WithoutCancel(t.Context()))) })
		return e
	}
	for i := range groups {
		var err error
		groups[i], err = instance.NewGroup(v.instance(t, 2))
		require.NoError(t, err)
		groups[i].Share()
		providers[i], err = instance.NewProvider(instance.Config{Group: groups[i]})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, providers[i].Close()) })
	}
	first, prepared := build(0), make(chan error, 1)
	go func() { prepared <- first.Prepare(t.Context()) }()
	require.Eventually(t, func() bool { return len(groups[0].Waiting()) == 1 }, sshtest.Bound, time.Millisecond)
	require.Equal(t, instance.Elsewhere, providers[0].Stat().Instances[0].State)
	require.ErrorIs(t, groups[0].Hold("vm-2"), instance.ErrUnknown)
	require.NoError(t, groups[0].Hold("vm-1"))
	require.NoError(t, <-prepared)
	_, err := first.Connect(t.Context())
	require.NoError(t, err)
	room, err := groups[0].Reserve(t.Context(), "", nil)
	require.NoError(t, err)
	room.Release()
	require.True(t, hasRoom(groups[0]) && groups[0].Takes(nil))
	require.False(t, groups[0].Takes(map[string]string{"k": "v"}))
	require.False(t, hasRoom(groups[1]) || groups[1].Takes(nil), "its slots are elsewhere")
	require.NoError(t, groups[0].Drain("vm-1"))
	require.False(t, hasRoom(groups[0]) || groups[0].Takes(nil))
	require.NoError(t, groups[0].Undrain("vm-1"))
	place, socket := first.Place()

	require.ErrorContains(t, build(1).Resume(t.Context(), place, socket), "elsewhere")
	providers[0].Yield("vm-1", func(builds []string) {
		require.Equal(t, []string{"build-1"}, builds)
		require.Equal(t, 1, conns(), "it is told before the connection is closed")
	})
	require.Eventually(t, func() bool { return conns() == 0 }, sshtest.Bound, time.Millisecond)
	require.NoError(t, first.Leave(t.Context()))
	require.NoError(t, groups[1].Hold("vm-1"))
	require.NoError(t, build(1).Resume(t.Context(), place, socket), "the build goes on with the other one")
	require.Equal(t, 1, conns())
	require.Equal(t, 2, v.TotalConns())
}

func hasRoom(g *instance.Group) bool {
	r := g.TryReserve("", nil)
	r.Release()
	return r != nil
}
