package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/place/docker"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/testing/dockertest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
)

// BenchmarkContainer measures builds in containers of a Docker daemon: their start, beside that of an empty command by
// the Docker client, here and on a VM, or of an exec in a container that is there; and many bridges at once, beside an
// exec for each.
func BenchmarkContainer(b *testing.B) {
	b.Run("start", benchmarkContainerStart)
	b.Run("start-ssh", benchmarkContainerStartSSH)
	b.Run("start-exec", benchmarkContainerStartExec)
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
		Config: place.Config{BuildID: "bench", Programs: []*program.Binary{bin}},
		Dial:   d.Dial, Daemon: &docker.Daemon{},
		Spec: docker.Spec{Spec: place.Spec{Image: dockertest.Image}, Network: "none"},
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
		buildStart("build", cfg),
		dockerClient("docker-run", nil, "-H", "unix://"+d.Socket, "run", "--rm", "--network", "none", dockertest.Image,
			"true"),
	}
	r := inTurns(b, usual, all)
	r.latencies("µs", names(all)...)
	r.ratios("docker-run", "build")
}

// buildStart measures from nothing to a step runner that listens.
func buildStart(name string, cfg docker.Config) candidate {
	return candidate{name: name, run: func(r *results) error {
		begin := time.Now()
		_, stop, err := containerBuild(cfg)
		if err != nil {
			return err
		}
		r.add(name, micros(time.Since(begin)))
		return stop()
	}}
}

// dockerClient measures a command of the Docker client.
func dockerClient(name string, env []string, args ...string) candidate {
	return candidate{name: name, run: func(r *results) error {
		cmd := exec.Command("docker", args...)
		cmd.Env = append(os.Environ(), env...)
		begin := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", name, err, out)
		}
		r.add(name, micros(time.Since(begin)))
		return nil
	}}
}

// benchmarkContainerStartSSH measures the start on a VM's daemon by a pooled connection, beside the Docker client's own
// way there: ssh:// and a login for each of its connections.
func benchmarkContainerStartSSH(b *testing.B) {
	d, v := dockertest.Start(b), newVM(b)
	cfg := containerConfig(b, d)
	conn := v.dial(b)
	cfg.Dial = func(ctx context.Context) (net.Conn, error) { return conn.DialUnix(ctx, d.Socket) }
	host, port, err := net.SplitHostPort(v.Addr)
	require.NoError(b, err)
	ssh, err := exec.LookPath("ssh")
	require.NoError(b, err)
	bin := b.TempDir() // with an ssh that knows the VM: the Docker client takes no options for it
	require.NoError(b, os.WriteFile(filepath.Join(bin, "ssh"), fmt.Appendf(nil,
		"#!/bin/sh\nexec %s -F none -i %s -o IdentitiesOnly=yes -o UserKnownHostsFile=%s -o LogLevel=ERROR \"$@\"\n",
		ssh, v.IdentityFile, v.KnownHosts), 0o755))
	all := []candidate{
		buildStart("build", cfg),
		dockerClient("docker-run", []string{"PATH=" + bin + ":" + os.Getenv("PATH")}, "-H",
			"ssh://"+v.User+"@"+net.JoinHostPort(host, port)+d.Socket, "run", "--rm", "--network", "none",
			dockertest.Image, "true"),
	}
	r := inTurns(b, usual, all)
	r.latencies("µs", names(all)...)
	r.ratios("docker-run", "build")
	require.Zero(b, conn.Stat().Sessions.Taken, "sessions")
}

// benchmarkContainerStartExec measures the start in a container that is there, beside a bare exec of a program that
// says something and ends.
func benchmarkContainerStartExec(b *testing.B) {
	d := dockertest.Start(b)
	made, err := d.Client.ContainerCreate(b.Context(), client.ContainerCreateOptions{
		Config:     &container.Config{Image: dockertest.Image, Cmd: []string{"sleep", "6000"}},
		HostConfig: &container.HostConfig{NetworkMode: "none"},
	})
	require.NoError(b, err)
	b.Cleanup(func() {
		_, err := d.Client.ContainerRemove(context.Background(), made.ID, client.ContainerRemoveOptions{Force: true})
		require.NoError(b, err)
	})
	_, err = d.Client.ContainerStart(b.Context(), made.ID, client.ContainerStartOptions{})
	require.NoError(b, err)
	cfg := containerConfig(b, d)
	cfg.Spec = docker.Spec{Container: made.ID}
	all := []candidate{
		// The relay that answers: from then on builds and bridges are its streams.
		{name: "relay", run: func(r *results) error {
			begin := time.Now()
			c, err := docker.Start(b.Context(), cfg)
			if err != nil {
				return err
			}
			r.add("relay", micros(time.Since(begin)))
			return c.Close(b.Context())
		}},
		{name: "exec", run: func(r *results) error {
			begin := time.Now()
			made, err := d.Client.ExecCreate(b.Context(), made.ID, client.ExecCreateOptions{
				Cmd: []string{"echo", "hello"}, AttachStdin: true, AttachStdout: true, AttachStderr: true,
			})
			if err != nil {
				return err
			}
			stream, err := d.Client.ExecAttach(b.Context(), made.ID, client.ExecAttachOptions{})
			if err != nil {
				return err
			}
			defer stream.Close()
			if _, err := io.ReadFull(stream.Reader, make([]byte, 8+6)); err != nil { // a header is before it
				return err
			}
			r.add("exec", micros(time.Since(begin)))
			return nil
		}},
	}
	r := inTurns(b, steady, all)
	r.latencies("µs", names(all)...)
	r.ratios("exec", "relay")
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
