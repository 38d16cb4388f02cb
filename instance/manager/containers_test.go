package manager_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/place/docker"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/manager"
	"github.com/stepmux/stepmux/internal/testing/dockertest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
)

// A build in a container goes on without its manager, with its files, and the next manager ends it.
func TestABuildInAContainerOutlivesItsManager(t *testing.T) {
	d := dockertest.Start(t)
	end, err := runnertest.Program()
	require.NoError(t, err)
	bin, err := program.LoadBinary(end)
	require.NoError(t, err)
	f, dir := newFleet(t), t.TempDir()
	f.provide = func(cfg *instance.Config) {
		cfg.Docker.Socket, cfg.ContainerPrograms = d.Socket, []*program.Binary{bin}
	}
	f.change = func(cfg *manager.Config) {
		cfg.Place = func(own *place.Spec) (place.Description, error) {
			if own == nil {
				return nil, nil
			}
			box := &docker.Spec{Spec: *own, Network: "none", Volumes: []string{dir + ":/shared"}}
			return box, box.Check()
		}
	}
	m := f.start(t)
	text, digest := archive(t, "in.txt", "from the project")
	_, err = m.keep(text, digest)
	require.NoError(t, err)
	j := fileJob(text, digest, "echo $COLOUR begun\nuntil [ -e /shared/go ]; do sleep 0.01; done\necho done")
	j.Job.Steps, j.Trace = append([]byte("image: "+dockertest.Image+"\n"), j.Job.Steps...), true
	id := m.submitJob(j)
	m.await(id, "of-the-image begun\n")
	m.stop()
	require.Len(t, d.Containers(t), 1)
	m = f.start(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o600))
	log, b := m.wait(id, 0)
	require.Empty(t, b.GetResult().GetReason(), b.GetResult().GetMessage())
	require.Contains(t, log, "from the project\nof-the-image begun\ndone\n")
	require.Empty(t, b.GetResult().GetLeft())
	said, err := m.unpacked(id, "out/said")
	require.NoError(t, err)
	require.Equal(t, "from the project", said)
	kept, err := m.trace(id)
	require.NoError(t, err)
	require.Equal(t, "success", kept.Identity.Status)
	require.Empty(t, d.Containers(t))

	// One whose container is gone is lost, and not started again.
	require.NoError(t, os.Remove(filepath.Join(dir, "go")))
	id = m.submitJob(j)
	m.await(id, "of-the-image begun\n")
	m.stop()
	d.RemoveAll(t)
	m = f.start(t)
	_, b = m.wait(id, 0)
	require.Equal(t, "runner_system_failure", b.GetResult().GetReason())
	require.Contains(t, b.GetResult().GetMessage(), "has ended (was the Docker daemon restarted?")
	require.Empty(t, d.Containers(t))
}

func TestAJobWithAnImageIsRefusedWhereBuildsHaveNoContainers(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	for text, says := range map[string]string{
		"image: busybox:1\n": "this manager's builds do not run in containers",
		"image: {nam: x}\n":  `job.yml:1:9: unknown key "nam", did you mean "name"?`,
	} {
		j := job("true")
		j.Job.Steps = append([]byte(text), j.Job.Steps...)
		_, err := m.Submit(t.Context(), j)
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
		require.ErrorContains(t, err, says)
	}
}
