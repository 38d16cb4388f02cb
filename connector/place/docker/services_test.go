package docker_test

import (
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/place/docker"
	"github.com/stepmux/stepmux/internal/testing/dockertest"
)

func TestABuildReachesItsServicesByTheirNames(t *testing.T) {
	d := dockertest.Start(t)
	// One that listens late, and one with a health check that fails at first.
	d.Load(t, "example.com/tools/web:1", "EXPOSE 8080", `CMD ["sh", "-c", "sleep 0.5; exec httpd -f -p 8080 -h /etc"]`)
	d.Load(t, "checked:1", `CMD ["sh", "-c", "sleep 0.5; echo $GREETING >/ready; exec httpd -f -p 80 -h /"]`,
		`HEALTHCHECK --interval=100ms --retries=600 CMD ["test", "-e", "/ready"]`)
	d.Load(t, "unchecked:1", `CMD ["sleep", "600"]`, "HEALTHCHECK NONE")
	// Symptom: a service that does not listen at each port of its image, as rabbitmq does not by default, was never ready.
	// Health checks in place of those of the images.
	d.Load(t, "slow:1", `CMD ["sh", "-c", "sleep 0.5; touch /up; sleep 600"]`, `HEALTHCHECK --interval=1h CMD ["false"]`)
	d.Load(t, "half:1", "EXPOSE 8080 8443", `CMD ["httpd", "-f", "-p", "8080", "-h", "/etc"]`)
	// Symptom: entrypoint: [""] of a service ran the entrypoint of its image.
	d.Load(t, "entered:1", `ENTRYPOINT ["false"]`)
	cfg := config(t, d)
	cfg.Spec.Network, cfg.Spec.Services = "", []place.Service{
		{Image: "entered:1", Entrypoint: []string{""}, Command: []string{"sleep", "600"}},
		{Image: "example.com/tools/web:1"},
		{Image: "unchecked:1"},
		{Image: "slow:1", Health: &place.Health{
			Test: "test -e /up", Interval: 100 * time.Millisecond, Timeout: time.Second, StartPeriod: time.Minute, Retries: 9,
		}},
		{Image: "slow:1", Alias: "off", Health: &place.Health{Disabled: true}},
		{Image: "half:1", Env: []string{"HEALTHCHECK_TCP_PORT=8080"}},
		{Image: "checked:1", Alias: "db", Env: []string{"GREETING=hello"}},
		{Image: dockertest.Image, Alias: "idle", Command: []string{"sleep", "600"}},
	}
	cfg.Spec.Memory, cfg.Spec.Pids = 256<<20, 200
	c := start(t, cfg)
	all, err := d.Client.ContainerList(t.Context(), client.ContainerListOptions{})
	require.NoError(t, err)
	require.Len(t, all.Items, 9)
	for _, one := range all.Items {
		told, err := d.Client.ContainerInspect(t.Context(), one.ID, client.ContainerInspectOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 256<<20, told.Container.HostConfig.Memory, "each has the limits")
		require.EqualValues(t, 200, *told.Container.HostConfig.PidsLimit)
	}
	out, result := run(t, c, "wget -qO- http://web:8080/passwd; wget -qO- http://db/ready; ping -c 1 -w 5 idle | head -1")
	require.Equal(t, connector.Succeeded, result.Status, "%+v", result)
	require.Contains(t, out, "root:x:0:0:")
	require.Contains(t, out, "\nhello\n")
	require.Contains(t, out, "PING idle (")
	require.NoError(t, c.Close(t.Context()))
	require.Empty(t, d.Containers(t))
}

func TestServicesThatDoNotGetReadyEndTheBuild(t *testing.T) {
	d := dockertest.Start(t)
	emptyAtTheEnd(t, d)
	d.Load(t, "deaf:1", "EXPOSE 8080", `CMD ["sh", "-c", "echo I never listen; sleep 600"]`)
	d.Load(t, "sick:1", `CMD ["sleep", "600"]`, `HEALTHCHECK --interval=50ms --retries=1 CMD ["false"]`)
	for name, test := range map[string]struct {
		service place.Service
		timeout time.Duration
		want    string
	}{
		"sick by another check": {
			place.Service{Image: "deaf:1", Health: &place.Health{Test: "exit 3", Interval: 50 * time.Millisecond, Retries: 1}},
			0, "service deaf: the service's health check fails; it said: I never listen",
		},
		"sooner than its image says": {
			place.Service{Image: "sick:1", Health: &place.Health{Interval: 20 * time.Millisecond}},
			0, "service sick: the service's health check fails",
		},
		"no port": {
			place.Service{Image: "deaf:1"},
			5 * time.Second,
			"service deaf: the service accepts no connection at 8080/tcp: " +
				"the service was not ready within 5s; it said: I never listen",
		},
		"sick": {place.Service{Image: "sick:1"}, 0, "service sick: the service's health check fails"},
		"ended": {
			place.Service{Image: "deaf:1", Alias: "db", Command: []string{"sh", "-c", "echo no password; exit 4"}},
			0,
			"service db: the service ended with exit status 4; it said: no password",
		},
		"missing": {
			place.Service{Image: "missing:1"},
			0,
			`service missing: the Docker daemon does not have image "missing:1"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t, d)
			cfg.Spec.Network, cfg.Spec.Pull, cfg.Spec.ServiceTimeout = "", place.PullNever, test.timeout
			cfg.Spec.Services = []place.Service{test.service}
			_, err := docker.Start(t.Context(), cfg)
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestServicesThatCannotBeStartedTogether(t *testing.T) {
	for want, spec := range map[string]docker.Spec{
		"has a network of its own":  {Spec: place.Spec{Services: []place.Service{{Image: "db"}}}, Network: "host"},
		"another container has the": {Spec: place.Spec{Services: []place.Service{{Image: "db:1"}, {Image: "x/db:2"}}}},
		"is no host name":           {Spec: place.Spec{Services: []place.Service{{Image: "db", Alias: "a b"}}}},
		"image name":                {Spec: place.Spec{Services: []place.Service{{Image: "a b"}}}},
		"is not KEY=VALUE":          {Spec: place.Spec{Services: []place.Service{{Image: "db", Env: []string{"secret"}}}}},
		// Symptom: it was said when the service had been started, by the flag --tcp of a command.
		`HEALTHCHECK_TCP_PORT is "http": want a port`: {
			Spec: place.Spec{Services: []place.Service{{Image: "db", Env: []string{"HEALTHCHECK_TCP_PORT=http"}}}},
		},
	} {
		spec.Image = "a"
		err := spec.Check()
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "secret")
	}
}

// The services of a manager that was killed run on, and so does nothing that could tell them. The next build ends them.
func TestTheNextBuildRemovesServicesThatWereLeft(t *testing.T) {
	d := dockertest.Start(t)
	t.Cleanup(docker.SetStartLimit(-1))
	labels := map[string]string{"dev.stepmux.build": "old", "dev.stepmux.group": "stepmux-old-1"}
	_, err := d.Client.NetworkCreate(t.Context(), "stepmux-old-1", client.NetworkCreateOptions{Labels: labels})
	require.NoError(t, err)
	labels["dev.stepmux.service"] = "db"
	made, err := d.Client.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Config:     &container.Config{Image: dockertest.Image, Cmd: []string{"sleep", "600"}, Labels: labels},
		HostConfig: &container.HostConfig{NetworkMode: "stepmux-old-1"},
	})
	require.NoError(t, err)
	_, err = d.Client.ContainerStart(t.Context(), made.ID, client.ContainerStartOptions{})
	require.NoError(t, err)
	require.NoError(t, start(t, config(t, d)).Close(t.Context())) // it waits for the reaper
	require.Empty(t, d.Containers(t))
}
