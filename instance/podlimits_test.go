package instance_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/place/kubernetes"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/testing/kubetest"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// The limits of an instance were those of builds on a VM and in containers, and not of builds in pods.
func TestAPodHasTheLimitsOfItsInstance(t *testing.T) {
	s := kubetest.Serve(t)
	cluster, err := kubernetes.Load(kubernetes.ClusterConfig{Kubeconfig: s.Kubeconfig})
	require.NoError(t, err)
	defer cluster.Close()
	pods := make(chan string, 1)
	s.RefuseIf(http.StatusForbidden, "it was seen", func(r *http.Request) bool {
		if r.Method != http.MethodPost {
			return false
		}
		body, _ := io.ReadAll(r.Body) // what is missing fails the test below
		pods <- string(body)
		return true
	})
	group, err := instance.NewGroup(instance.Instance{
		ID: "cluster", Cluster: cluster, Options: vmconfig.Options{Limits: vmconfig.Limits{Memory: 64 << 20, CPUs: 1.1}},
	})
	require.NoError(t, err)
	p, err := instance.NewProvider(instance.Config{Group: group})
	require.NoError(t, err)
	defer p.Close()
	for memory, want := range map[int64]string{0: `"memory":"67108864"`, 1 << 30: `"memory":"1073741824"`} {
		spec := &kubernetes.Spec{Spec: place.Spec{Image: "busybox:1", Memory: memory}}
		e := p.Executor(instance.Build{ID: "b1", Place: spec})
		require.NoError(t, e.Prepare(t.Context()))
		_, err = e.Connect(t.Context())
		require.ErrorContains(t, err, "it was seen")
		require.NoError(t, e.Cleanup(t.Context()))
		require.Contains(t, <-pods, `"limits":{"cpu":"1100000000n",`+want+`}`)
	}
}
