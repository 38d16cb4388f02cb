package instance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/docker"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/pool"
)

const defaultDockerSocket = "/var/run/docker.sock"

// box is the container of a build.
type box struct {
	started   chan struct{}          // closed when its start has ended, well or not
	container *docker.Container      // nil unless it started; set before started is closed
	lease     *pool.Lease[*mux.Conn] // carries all calls of the daemon
}

// startContainer starts the build's container and makes it the place of the step runner. It takes over the lease.
func (e *Executor) startContainer(
	ctx context.Context, s *slot, lease *pool.Lease[*mux.Conn], place *connector.Config,
) error {
	b := &box{started: make(chan struct{}), lease: lease}
	if !e.keep(func() { e.box = b }) {
		lease.Release()
		return ErrCleanedUp
	}
	defer close(b.started)
	cfg, spec, limits := e.provider.cfg, *e.build.Container, s.member.Limits
	spec.Memory = cmp.Or(spec.Memory, limits.Memory)
	spec.Pids = cmp.Or(spec.Pids, limits.PIDs)
	spec.NanoCPUs = cmp.Or(spec.NanoCPUs, int64(limits.CPUs*1e9))
	c, err := docker.Start(ctx, docker.Config{
		Dial: func(ctx context.Context) (net.Conn, error) {
			stream, err := lease.Conn().DialUnix(ctx, cfg.DockerSocket)
			if err != nil {
				return nil, fmt.Errorf("%s on instance %s (sshd must allow AllowStreamLocalForwarding): %w",
					cfg.DockerSocket, s.member.ID, err)
			}
			return stream, nil
		},
		Daemon: s.member.daemon, BuildID: e.build.ID, Spec: spec, Programs: cfg.ContainerPrograms,
		Log: e.log.Remarks(e.life.Done()), ReadyTimeout: cfg.ReadyTimeout, StopTimeout: cfg.StopTimeout,
		Logger: place.Logger,
	})
	if err != nil {
		lease.Release()
		return err
	}
	if !e.keep(func() { b.container = c }) {
		defer lease.Release()
		return errors.Join(ErrCleanedUp, c.Close(context.WithoutCancel(ctx)))
	}
	c.Configure(place)
	return nil
}

// explain returns an error of the step runner with the reason of the container's end, if that is the cause.
func (b *box) explain(ctx context.Context, err error) error {
	if b == nil || b.container == nil || !mux.IsLost(err) {
		return err
	}
	return b.container.Explain(ctx, err)
}

// close removes the container, if there is one. Its start has ended, or removes it when it does.
func (b *box) close(ctx context.Context) error {
	if b.running() == nil {
		return nil
	}
	defer b.lease.Release()
	return b.container.Close(ctx)
}

// removed reports whether the container was removed, and so all that the build had in it.
func (b *box) removed() bool { return b != nil && b.running() != nil && b.container.Removed() }

// running returns the container, or nil before it runs.
func (b *box) running() *docker.Container {
	select {
	case <-b.started:
		return b.container
	default:
		return nil
	}
}
