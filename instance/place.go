package instance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/place/docker"
	"github.com/stepmux/stepmux/connector/place/kubernetes"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/pool"
)

// box holds the place of a build.
type box struct {
	started chan struct{} // closed when its start has ended, with or without success
	place   place.Place   // nil unless the start succeeded; set before started is closed
}

// startPlace starts the place of the build or, with into.Attach set, attaches to the one of that step runner. Then
// resumes is true, and at the place's name. startPlace configures the step runner's Connector for the place.
func (e *Executor) startPlace(
	ctx context.Context, into *connector.Config, start func(resumes bool, at string) (place.Place, error),
) error {
	b := &box{started: make(chan struct{})}
	if !e.keep(func() { e.box = b }) {
		return ErrCleanedUp
	}
	defer close(b.started)
	resumes := into.Attach != ""
	at, socket, _ := strings.Cut(into.Attach, placeSocket)
	into.Attach = socket
	p, err := start(resumes, at)
	if err != nil {
		return err
	}
	if !e.keep(func() { b.place = p }) {
		if into.Attach != "" && e.isLeft() { // the build runs there
			p.Leave()
		}
		return errors.Join(ErrCleanedUp, p.Close(context.WithoutCancel(ctx)))
	}
	p.Configure(into)
	return nil
}

// isLeft reports whether Leave was called.
func (e *Executor) isLeft() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.leaves
}

// placeConfig describes the build to its place.
func (e *Executor) placeConfig(into *connector.Config) place.Config {
	cfg := e.provider.cfg
	return place.Config{
		BuildID: e.build.ID, Programs: cfg.ContainerPrograms, Log: e.log.Remarks(e.life.Done()), Linger: into.Linger,
		ReadyTimeout: cfg.ReadyTimeout, StopTimeout: cfg.StopTimeout, Logger: into.Logger,
	}
}

// startPod starts the build's pod, or attaches to it.
func (e *Executor) startPod(ctx context.Context, s *slot, into *connector.Config, spec kubernetes.Spec) error {
	spec.Limit(s.placement.Limits)
	pod := kubernetes.Config{
		Config: e.placeConfig(into), Cluster: s.placement.Cluster, Spec: spec, Timeout: e.build.Timeout,
	}
	return e.startPlace(ctx, into, func(resumes bool, at string) (place.Place, error) {
		if resumes {
			return kubernetes.Attach(ctx, pod, at)
		}
		return kubernetes.Start(ctx, pod)
	})
}

// dockerPlace is a container, with the lease for all calls of its daemon.
type dockerPlace struct {
	*docker.Container
	again func(context.Context) (*pool.Lease[*mux.Conn], error) // takes another lease

	mu     sync.Mutex // guards the following
	lease  *pool.Lease[*mux.Conn]
	link   *docker.Container // the latest link to the container; nil for the first
	closed bool
}

// startContainer starts the build's container, or attaches to it. It takes over the lease.
func (e *Executor) startContainer(
	ctx context.Context, s *slot, lease *pool.Lease[*mux.Conn], into *connector.Config, spec docker.Spec,
) error {
	spec.Limit(s.placement.Limits)
	d := &dockerPlace{lease: lease, again: func(ctx context.Context) (*pool.Lease[*mux.Conn], error) {
		return e.reconnect(ctx, s, stay)
	}}
	err := e.startPlace(ctx, into, func(resumes bool, at string) (_ place.Place, err error) {
		box := docker.Config{
			Config: e.placeConfig(into), Daemon: s.placement.daemon, Spec: spec,
			Dial: func(ctx context.Context) (net.Conn, error) {
				return e.provider.cfg.Docker.Dial(ctx, func(ctx context.Context, network, addr string) (net.Conn, error) {
					stream, err := d.conn().Dial(ctx, network, addr)
					if err != nil {
						return nil, fmt.Errorf("%s on instance %s (sshd must allow %s): %w", addr, s.placement.ID,
							map[string]string{"unix": "AllowStreamLocalForwarding", "tcp": "AllowTcpForwarding"}[network], err)
					}
					return stream, nil
				})
			},
		}
		if resumes {
			return d, d.attach(ctx, box, at, into.Linger)
		}
		d.Container, err = docker.Start(ctx, box)
		return d, err
	})
	if err != nil {
		d.release()
	}
	return err
}

// conn returns the connection to the instance.
func (d *dockerPlace) conn() *mux.Conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lease.Conn()
}

// release releases the lease, once.
func (d *dockerPlace) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.lease.Release()
}

// Configure implements place.Place.
func (d *dockerPlace) Configure(cfg *connector.Config) {
	cmp.Or(d.link, d.Container).Configure(cfg)
	cfg.Reconnect = d.reconnect
}

// attach attaches to the container. If the connection to the VM is lost in between, it tries again, for the time of the
// linger.
func (d *dockerPlace) attach(ctx context.Context, box docker.Config, at string, linger time.Duration) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, linger, errAway)
	defer cancel()
	for {
		if d.Container, d.link, err = docker.Attach(ctx, box, at); err == nil || d.conn().Err() == nil {
			return err
		}
		if again := d.renew(ctx); again != nil {
			return errors.Join(err, again)
		}
	}
}

// renew takes another lease.
func (d *dockerPlace) renew(ctx context.Context) error {
	lease, err := d.again(ctx)
	if err != nil {
		return err
	}
	d.mu.Lock()
	before, closed := d.lease, d.closed
	if !closed {
		d.lease = lease
	}
	d.mu.Unlock()
	if closed {
		lease.Release()
		return ErrCleanedUp
	}
	before.Release()
	return nil
}

// reconnect makes another link to the container, with another lease.
func (d *dockerPlace) reconnect(ctx context.Context) (connector.Lease, error) {
	if err := d.renew(ctx); err != nil {
		return nil, err
	}
	link, err := d.Reconnect(ctx)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.link = link
	return link, nil
}

// Explain implements place.Place, using the latest link to the container.
func (d *dockerPlace) Explain(ctx context.Context, err error) error {
	d.mu.Lock()
	latest := cmp.Or(d.link, d.Container)
	d.mu.Unlock()
	return latest.Explain(ctx, err)
}

// Close implements place.Place.
func (d *dockerPlace) Close(ctx context.Context) error {
	defer d.release()
	return d.Container.Close(ctx)
}

// explain adds the reason of the place's end to an error of the step runner, if that is its cause.
func (b *box) explain(ctx context.Context, err error) error {
	p := b.running()
	if p == nil {
		return err
	}
	return p.Explain(ctx, err)
}

// close removes the place, if there is one, or leaves it running. A start that is still under way does that itself.
func (b *box) close(ctx context.Context, leaves bool) error {
	p := b.running()
	if p == nil {
		return nil
	}
	if leaves {
		p.Leave()
	}
	return p.Close(ctx)
}

// removed reports whether the place was removed, with everything the build had in it.
func (b *box) removed() bool {
	p := b.running()
	return p != nil && p.Removed()
}

// running returns the place, or nil before it runs and for a build without one.
func (b *box) running() place.Place {
	if b == nil {
		return nil
	}
	select {
	case <-b.started:
		return b.place
	default:
		return nil
	}
}
