package docker_test

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/place/docker"
	"github.com/stepmux/stepmux/internal/testing/dockertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// standing starts a container by itself, which the test's end removes.
func standing(t *testing.T, d *dockertest.Daemon, name string, host container.HostConfig) {
	t.Helper()
	host.NetworkMode = "none"
	made, err := d.Client.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Name: name, HostConfig: &host,
		Config: &container.Config{Image: dockertest.Image, Cmd: []string{"sleep", "600"}},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := d.Client.ContainerRemove(context.Background(), made.ID, client.ContainerRemoveOptions{Force: true})
		require.NoError(t, err)
	})
	_, err = d.Client.ContainerStart(t.Context(), made.ID, client.ContainerStartOptions{})
	require.NoError(t, err)
	// The daemon answers when runc is about to execute the program.
	require.Eventually(t, func() bool { return slices.Equal(processes(t, d, name), []string{"sleep 600"}) },
		sshtest.Bound, time.Millisecond)
}

// processes returns the command lines in a container.
func processes(t *testing.T, d *dockertest.Daemon, name string) (all []string) {
	t.Helper()
	top, err := d.Client.ContainerTop(t.Context(), name, client.ContainerTopOptions{Arguments: []string{"-o", "pid,args"}})
	require.NoError(t, err)
	for _, line := range top.Processes {
		all = append(all, line[1])
	}
	return all
}

func inStanding(t *testing.T, d *dockertest.Daemon) docker.Config {
	cfg := config(t, d)
	cfg.Spec = docker.Spec{Container: "standing"}
	return cfg
}

func TestABuildInAContainerThatIsThereLeavesItAsItWas(t *testing.T) {
	d := dockertest.Start(t)
	standing(t, d, "standing", container.HostConfig{})
	cfg := inStanding(t, d)
	c := start(t, cfg)
	out, result := run(t, c, "echo $COLOUR; id -u; (setsid sleep 600 &) ; exit 3")
	require.Equal(t, 3, result.ExitCode)
	require.Equal(t, "of-the-image\n0\n", out)
	require.NoError(t, c.Close(t.Context()))
	require.Equal(t, []string{"sleep 600"}, processes(t, d, "standing"), "its own, and no other")

	// Another user, with the same program, and after it was removed.
	cfg.Spec.User = "1000"
	for _, script := range []string{"id -u; rm -rf /.stepmux 2>/dev/null; true", "id -u"} {
		c = start(t, cfg)
		out, _ = run(t, c, script)
		require.Equal(t, "1000\n", out)
		require.NoError(t, c.Close(t.Context()))
	}
	cfg.Spec.User = ""
	c = start(t, cfg)
	_, _ = run(t, c, "mv /.stepmux /gone")
	_ = c.Close(t.Context()) // its directories are not where they were
	out, _ = run(t, start(t, cfg), "echo again")
	require.Equal(t, "again\n", out)
}

// The daemon ends the stdin of an exec whose client has died.
func TestAManagerThatDiesLeavesNothingInAContainerThatIsThere(t *testing.T) {
	d := dockertest.Start(t)
	standing(t, d, "standing", container.HostConfig{})
	cfg := inStanding(t, d)
	hangUp := recordConns(&cfg)
	c := start(t, cfg)
	b := connect(t, c)
	_, err := b.Execute(
		t.Context(),
		connector.Job{Job: &stepmuxv1.Job{Script: "(setsid sleep 600 &); echo started; sleep 600"}},
		writerFunc(func(p []byte) (int, error) {
			if bytes.Contains(p, []byte("started")) {
				hangUp()
			}
			return len(p), nil
		}),
	)
	require.True(t, mux.IsLost(err), "%v", err)
	require.Eventually(t, func() bool { return len(processes(t, d, "standing")) == 1 }, sshtest.Bound,
		10*time.Millisecond)
	_ = b.Close(t.Context()) // the step runner's end was not seen
	require.NoError(t, c.Close(t.Context()))
}

func TestAContainerThatCannotTakeABuildIsRefused(t *testing.T) {
	d := dockertest.Start(t)
	cfg := inStanding(t, d)
	_, err := docker.Start(t.Context(), cfg)
	require.ErrorContains(t, err, `run in container "standing": Error response from daemon: No such container`)
	standing(t, d, "standing", container.HostConfig{ReadonlyRootfs: true})
	_, err = docker.Start(t.Context(), cfg)
	require.ErrorContains(t, err, "read-only")
	require.Equal(t, []string{"sleep 600"}, processes(t, d, "standing"))
	_, err = d.Client.ContainerPause(t.Context(), "standing", client.ContainerPauseOptions{})
	require.NoError(t, err)
	_, err = docker.Start(t.Context(), cfg)
	require.ErrorContains(t, err, "it does not run")
}

// A build that lingers in a container that is there comes back to it by another exec.
func TestABuildInAContainerThatIsThereCanLinger(t *testing.T) {
	d := dockertest.Start(t)
	standing(t, d, "standing", container.HostConfig{})
	cfg := inStanding(t, d)
	cfg.Linger = time.Minute
	hangUp := recordConns(&cfg)
	c := start(t, cfg)
	b := &build{}
	place := connector.Config{BuildID: "b1", Log: &b.log, Options: vmconfig.Options{Linger: time.Minute}}
	var links atomic.Int32
	place.Reconnect = func(ctx context.Context) (connector.Lease, error) {
		links.Add(1)
		return c.Reconnect(ctx)
	}
	c.Configure(&place)
	var err error
	b.Connector, err = connector.New(place)
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close(context.Background()) }) // a failed test leaves it open
	_, err = b.Connect(t.Context())
	require.NoError(t, err)
	var once sync.Once
	result, err := b.Execute(t.Context(), connector.Job{Job: &stepmuxv1.Job{Script: "echo started; exit 3"}},
		writerFunc(func(p []byte) (int, error) {
			once.Do(hangUp)
			return len(p), nil
		}))
	require.NoError(t, err)
	require.Equal(t, 3, result.ExitCode)
	require.NoError(t, b.Close(t.Context()))
	require.Positive(t, links.Load())
	require.Empty(t, b.Left())
	require.NoError(t, c.Close(t.Context()))
	require.Equal(t, []string{"sleep 600"}, processes(t, d, "standing"), "Close has waited for the end of the relay")
}
