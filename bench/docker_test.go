package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/docker"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/dockertest"
	"github.com/stepmux/stepmux/internal/runnertest"
)

// BenchmarkContainer measures builds in containers of a Docker daemon: their start, beside that of an empty command by
// the Docker client, and many bridges at once, beside an exec for each.
func BenchmarkContainer(b *testing.B) {
	b.Run("start", benchmarkContainerStart)
	for _, n := range sizes([]int{1, 32, 128}, 1, 4) {
		b.Run(fmt.Sprintf("bridges=%d", n), func(b *testing.B) { benchmarkContainerBridges(b, n) })
	}
}

func containerConfig(b *testing.B, d *dockertest.Daemon) docker.Config {
	b.Helper()
	end, err := runnertest.Program()
	require.NoError(b, err)
	bin, err := program.LoadBinary(end)
	require.NoError(b, err)
	return docker.Config{
		Dial: d.Dial, Daemon: &docker.Daemon{}, BuildID: "bench", Programs: []*program.Binary{bin},
		Spec: docker.Spec{Image: dockertest.Image, Network: "none"},
	}
}

// containerBuild starts a build in a container. stop ends both.
func containerBuild(cfg docker.Config) (dial func() (io.ReadWriteCloser, error), stop func() error, err error) {
	c, err := docker.Start(context.Background(), cfg)
	if err != nil {
		return nil, nil, err
	}
	place := connector.Config{BuildID: cfg.BuildID}
	c.Configure(&place)
	build, err := connector.New(place)
	if err != nil {
		return nil, nil, errors.Join(err, c.Close(context.Background()))
	}
	stop = func() error { return errors.Join(build.Close(context.Background()), c.Close(context.Background())) }
	if dial, err = build.Connect(context.Background()); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return dial, stop, nil
}

// benchmarkContainerStart measures from nothing to a step runner that listens, and to the end of an empty command.
func benchmarkContainerStart(b *testing.B) {
	d := dockertest.Start(b)
	cfg := containerConfig(b, d)
	all := []candidate{
		{name: "build", run: func(r *results) error {
			begin := time.Now()
			_, stop, err := containerBuild(cfg)
			if err != nil {
				return err
			}
			r.add("build", micros(time.Since(begin)))
			return stop()
		}},
		{name: "docker-run", run: func(r *results) error {
			begin := time.Now()
			out, err := exec.Command("docker", "-H", "unix://"+d.Socket, "run", "--rm", "--network", "none",
				dockertest.Image, "true").CombinedOutput()
			if err != nil {
				return fmt.Errorf("docker run: %w: %s", err, out)
			}
			r.add("docker-run", micros(time.Since(begin)))
			return nil
		}},
	}
	r := inTurns(b, usual, all)
	r.latencies("µs", names(all)...)
	r.ratios("docker-run", "build")
}

// benchmarkContainerBridges measures how long n bridges to one step runner take until each has heard of it.
func benchmarkContainerBridges(b *testing.B, n int) {
	d := dockertest.Start(b)
	cfg := containerConfig(b, d)
	dial, stop, err := containerBuild(cfg)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, stop()) })
	found, err := d.Client.ContainerList(b.Context(), client.ContainerListOptions{})
	require.NoError(b, err)
	require.Len(b, found.Items, 1)
	const stepmux, socket = "/.stepmux/bin/stepmux", "/.stepmux/gitlab-runner-steps/bench/step-runner.sock"
	byExec := func() (io.ReadWriteCloser, error) {
		made, err := d.Client.ExecCreate(b.Context(), found.Items[0].ID, client.ExecCreateOptions{
			Cmd: []string{stepmux, "steps", "proxy", "--socket", socket}, AttachStdin: true, AttachStdout: true,
		})
		if err != nil {
			return nil, err
		}
		stream, err := d.Client.ExecAttach(b.Context(), made.ID, client.ExecAttachOptions{})
		if err != nil {
			return nil, err
		}
		return stream.Conn, nil
	}
	all := []candidate{
		{name: "attach", run: func(r *results) error { return r.bridges("attach", n, 9, dial) }},
		// The daemon puts a header before each piece of output.
		{name: "exec", every: min(n, 8), run: func(r *results) error { return r.bridges("exec", n, 8+9, byExec) }},
	}
	r := inTurns(b, costly, all)
	r.latencies("µs", names(all)...)
	r.ratios("exec", "attach")
}

// bridges opens n bridges at once and reads the first bytes of each: a gRPC server sends first.
func (r *results) bridges(name string, n, head int, dial func() (io.ReadWriteCloser, error)) error {
	errs := make([]error, n)
	begin := time.Now()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			s, err := dial()
			if err == nil {
				_, err = io.ReadFull(s, make([]byte, head))
				_ = s.Close() // it has done its work
			}
			errs[i] = err
		})
	}
	wg.Wait()
	r.add(name, micros(time.Since(begin)))
	return errors.Join(errs...)
}
