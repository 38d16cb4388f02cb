package instance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/docker"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/pool"
)

// box is the container of a build.
type box struct {
	started   chan struct{}     // closed when its start has ended, well or not
	container *docker.Container // nil unless it started; set before started is closed

	mu     sync.Mutex             // guards the following
	lease  *pool.Lease[*mux.Conn] // carries all calls of the daemon
	link   *docker.Container      // the latest one to the container; nil before the first Reconnect
	closed bool
}

// conn returns the connection to the instance.
func (b *box) conn() *mux.Conn {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lease.Conn()
}

// latest returns the latest link to the container.
func (b *box) latest() *docker.Container {
	b.mu.Lock()
	defer b.mu.Unlock()
	return cmp.Or(b.link, b.container)
}

// reconnect makes another link to the container, by a lease that is the box's from then on.
func (b *box) reconnect(ctx context.Context, lease *pool.Lease[*mux.Conn]) (connector.Lease, error) {
	b.mu.Lock()
	before, closed := b.lease, b.closed
	if !closed {
		b.lease = lease
	}
	b.mu.Unlock()
	if closed {
		lease.Release()
		return nil, ErrCleanedUp
	}
	before.Release()
	link, err := b.container.Reconnect(ctx)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.link = link
	return link, nil
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
			return cfg.Docker.Dial(ctx, func(ctx context.Context, network, addr string) (net.Conn, error) {
				stream, err := b.conn().Dial(ctx, network, addr)
				if err != nil {
					return nil, fmt.Errorf("%s on instance %s (sshd must allow %s): %w", addr, s.member.ID,
						map[string]string{"unix": "AllowStreamLocalForwarding", "tcp": "AllowTcpForwarding"}[network], err)
				}
				return stream, nil
			})
		},
		Daemon: s.member.daemon, BuildID: e.build.ID, Spec: spec, Programs: cfg.ContainerPrograms,
		Log: e.log.Remarks(e.life.Done()), ReadyTimeout: cfg.ReadyTimeout, StopTimeout: cfg.StopTimeout,
		Linger: place.Linger > 0, Logger: place.Logger,
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
	place.Reconnect = func(ctx context.Context) (connector.Lease, error) {
		lease, err := e.reconnect(ctx, s)
		if err != nil {
			return nil, err
		}
		return b.reconnect(ctx, lease)
	}
	return nil
}

// explain returns an error of the step runner with the reason of the container's end, if that is the cause.
func (b *box) explain(ctx context.Context, err error) error {
	if b == nil || b.container == nil || !mux.IsLost(err) && !errors.Is(err, connector.ErrGone) {
		return err
	}
	return b.latest().Explain(ctx, err)
}

// close removes the container, if there is one. Its start has ended, or removes it when it does.
func (b *box) close(ctx context.Context) error {
	if b.running() == nil {
		return nil
	}
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.closed = true
		b.lease.Release()
	}()
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
