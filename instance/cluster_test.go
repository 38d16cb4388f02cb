package instance

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/place/kubernetes"
)

// fakePod is a pod that needs no cluster.
type fakePod struct{ place.Place }

func (fakePod) Close(context.Context) error { return nil }
func (fakePod) Removed() bool               { return true }

// A cluster took builds without end: no build was a use, because it has no lease on a connection.
func TestABuildThatHadAPodIsAUseOfItsCluster(t *testing.T) {
	g, err := NewGroup(Instance{ID: "cluster", Cluster: &kubernetes.Cluster{}, MaxUses: 1})
	require.NoError(t, err)
	p, err := NewProvider(Config{Group: g})
	require.NoError(t, err)
	defer p.Close()
	e := p.Executor(Build{ID: "no-pod"})
	require.NoError(t, e.Prepare(t.Context()))
	_, err = e.Client(t.Context())
	require.ErrorContains(t, err, "in a pod")
	require.NoError(t, e.Cleanup(t.Context()))
	require.Zero(t, p.Stat().Instances[0].Uses)

	e = p.Executor(Build{ID: "pod"})
	require.NoError(t, e.Prepare(t.Context()))
	e.box = &box{started: make(chan struct{}), place: fakePod{}}
	close(e.box.started)
	require.NoError(t, e.Cleanup(t.Context()))
	require.Equal(t, 1, p.Stat().Instances[0].Uses)
	require.ErrorContains(t, p.Executor(Build{ID: "late"}).Prepare(t.Context()), "cluster has had its 1 use")
}

// Resume started a pod if the text about the place of a build named none, though it is to start nothing.
func TestResumeOfABuildWhosePodIsNotNamedStartsNone(t *testing.T) {
	g, err := NewGroup(Instance{ID: "cluster", Cluster: &kubernetes.Cluster{}})
	require.NoError(t, err)
	p, err := NewProvider(Config{Group: g})
	require.NoError(t, err)
	defer p.Close()
	e := p.Executor(Build{ID: "pod", Place: &kubernetes.Spec{}})
	require.ErrorContains(t, e.Resume(t.Context(), "cluster", ":/tmp/serve.sock"), `"" is no place of a pod`)
	require.NoError(t, e.Cleanup(t.Context()))
}
