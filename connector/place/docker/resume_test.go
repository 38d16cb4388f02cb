package docker_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/place/docker"
	"github.com/stepmux/stepmux/internal/testing/dockertest"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// The Container of Attach stands for another process.
func TestABuildInAContainerGoesOnInAnotherProcess(t *testing.T) {
	d := dockertest.Start(t)
	standing(t, d, "standing", container.HostConfig{})
	alone := d.Containers(t)
	for name, spec := range map[string]docker.Spec{
		"with a service": {
			Spec: place.Spec{Image: dockertest.Image, Services: []place.Service{
				{Image: dockertest.Image, Alias: "idle", Command: []string{"sleep", "600"}},
			}},
		},
		"another user":         {Spec: place.Spec{Image: dockertest.Image, User: "1000", Memory: 64 << 20}, Network: "none"},
		"in one that is there": {Container: "standing"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t, d)
			cfg.Spec, cfg.Linger = spec, time.Minute
			first := start(t, cfg)
			connectTo := func(c, link *docker.Container, socket string) *connector.Connector {
				place := connector.Config{
					BuildID: "b1", Options: vmconfig.Options{Isolation: vmconfig.Off, Linger: time.Minute},
					Secret: strings.Repeat("s", 43), Attach: socket,
					Reconnect: func(ctx context.Context) (connector.Lease, error) { return c.Reconnect(ctx) },
				}
				link.Configure(&place)
				b, err := connector.New(place)
				require.NoError(t, err)
				t.Cleanup(func() { _ = b.Close(context.Background()) }) // a failed test leaves it open
				_, err = b.Connect(t.Context())
				require.NoError(t, err)
				return b
			}
			b := connectTo(first, first, "")
			place, socket, about := first.At(), b.Socket(), first.Containers()
			there := d.Containers(t)
			b.Leave()
			first.Leave()
			require.NoError(t, b.Close(t.Context()))
			require.NoError(t, first.Close(t.Context()))
			require.Equal(t, there, d.Containers(t))

			var said bytes.Buffer
			cfg.Daemon, cfg.Log = &docker.Daemon{}, &said
			second, link, err := docker.Attach(t.Context(), cfg, place)
			require.NoError(t, err)
			t.Cleanup(func() { _ = second.Close(context.Background()) }) // as above
			require.Equal(t, first.Image(), second.Image())
			require.Equal(t, about, second.Containers(), "else the job would be another one")
			b = connectTo(second, link, socket)
			var log bytes.Buffer
			script := "echo here; exit 3"
			if spec.Memory > 0 {
				script = "head -c 200000000 /dev/zero | tail -c 190000000 >/dev/null; " + script
			}
			result, err := b.Execute(t.Context(), connector.Job{Job: &stepmuxv1.Job{Script: script}}, &log)
			require.NoError(t, err)
			require.Equal(t, 3, result.ExitCode)
			require.Contains(t, log.String(), "here\n")
			second.Note(t.Context(), 137)
			require.Equal(t, spec.Memory > 0, strings.Contains(said.String(), "the container ran out of memory"), said.String())
			require.NoError(t, b.Close(t.Context()))
			require.Empty(t, b.Left())
			if spec.Container == "" {
				cfg.BuildID = "b2"
				_, _, err = docker.Attach(t.Context(), cfg, place)
				require.ErrorContains(t, err, "is not that of the build b2")
				cfg.BuildID = "b1"
			}
			require.NoError(t, second.Close(t.Context()))
			require.Equal(t, alone, d.Containers(t))
			require.Equal(t, []string{"sleep 600"}, processes(t, d, "standing"))
			if spec.Container == "" {
				_, _, err = docker.Attach(t.Context(), cfg, place)
				require.ErrorIs(t, err, connector.ErrGone)
			}
		})
	}
}

// Symptom: a build that had come back to its container, and lost that link too, waited until the containers of others
// were removed, for up to its StopTimeout, before it went on.
func TestALinkEndsThoughTheDaemonsContainersAreBeingRemoved(t *testing.T) {
	d := dockertest.Start(t)
	cfg := config(t, d)
	cfg.Linger, cfg.StopTimeout = time.Minute, time.Minute
	c := start(t, cfg)
	link, err := c.Reconnect(t.Context())
	require.NoError(t, err)
	over := docker.HoldReaping(cfg.Daemon)
	defer over()
	released := make(chan struct{})
	go func() {
		defer close(released)
		link.Release()
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	select {
	case <-released:
	case <-ctx.Done():
		require.Fail(t, "the link waits for the removal")
	}
}
