package instance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/docker"
	"github.com/stepmux/stepmux/connector/kubernetes"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/pool"
)

const defaultDockerSocket = "/var/run/docker.sock"

// place is the container or the pod in which a build's step runner is.
type place interface {
	Configure(cfg *connector.Config)
	Image() string
	Explain(ctx context.Context, err error) error
	Note(ctx context.Context, exitCode int)
	Removed() bool
	Close(ctx context.Context) error
}

// box is the place of a build.
type box struct {
	started chan struct{} // closed when its start has ended, well or not
	place   place         // nil unless it started; set before started is closed
	release func()        // of the lease that carries all calls of a daemon
}

// startPlace makes the place of the build by start, and makes it that of the step runner. It takes over the lease.
func (e *Executor) startPlace(
	ctx context.Context, cfg *connector.Config, release func(), start func() (place, error),
) error {
	b := &box{started: make(chan struct{}), release: release}
	if !e.keep(func() { e.box = b }) {
		release()
		return ErrCleanedUp
	}
	defer close(b.started)
	p, err := start()
	if err != nil {
		release()
		return err
	}
	if !e.keep(func() { b.place = p }) {
		defer release()
		return errors.Join(ErrCleanedUp, p.Close(context.WithoutCancel(ctx)))
	}
	p.Configure(cfg)
	return nil
}

// startPod starts the build's pod.
func (e *Executor) startPod(ctx context.Context, s *slot, cfg *connector.Config) error {
	if e.build.Pod == nil {
		return fmt.Errorf("instance: a build on the cluster %s needs a Pod", s.member.ID)
	}
	own := e.provider.cfg
	return e.startPlace(ctx, cfg, func() {}, func() (place, error) {
		p, err := kubernetes.Start(ctx, kubernetes.Config{
			Cluster: s.member.Cluster, BuildID: e.build.ID, Spec: *e.build.Pod, Programs: own.ContainerPrograms,
			Log: e.log.Remarks(e.life.Done()), Timeout: e.build.Timeout, Linger: e.linger(s),
			ReadyTimeout: own.ReadyTimeout, StopTimeout: own.StopTimeout, Logger: cfg.Logger,
		})
		if err != nil {
			return nil, err
		}
		return p, nil
	})
}

// startContainer starts the build's container and makes it the place of the step runner. It takes over the lease.
func (e *Executor) startContainer(
	ctx context.Context, s *slot, lease *pool.Lease[*mux.Conn], into *connector.Config,
) error {
	cfg, spec, limits := e.provider.cfg, *e.build.Container, s.member.Limits
	spec.Memory = cmp.Or(spec.Memory, limits.Memory)
	spec.Pids = cmp.Or(spec.Pids, limits.PIDs)
	spec.NanoCPUs = cmp.Or(spec.NanoCPUs, int64(limits.CPUs*1e9))
	return e.startPlace(ctx, into, lease.Release, func() (place, error) {
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
			Logger: into.Logger,
		})
		if err != nil {
			return nil, err
		}
		return c, nil
	})
}

// explain returns an error of the step runner with the reason of the place's end, if that is the cause.
func (b *box) explain(ctx context.Context, err error) error {
	if b == nil || b.place == nil || !b.isEnd(err) {
		return err
	}
	return b.place.Explain(ctx, err)
}

// isEnd reports whether the end of the place may be the cause of err. A pod that is deleted ends its processes first.
func (b *box) isEnd(err error) bool {
	_, isPod := b.place.(*kubernetes.Pod)
	_, ended := errors.AsType[*connector.ServeError](err)
	return mux.IsLost(err) || isPod && ended
}

// close removes the place, if there is one. Its start has ended, or removes it when it does.
func (b *box) close(ctx context.Context) error {
	if b.running() == nil {
		return nil
	}
	defer b.release()
	return b.place.Close(ctx)
}

// removed reports whether the place was removed, and so all that the build had in it.
func (b *box) removed() bool { return b != nil && b.running() != nil && b.place.Removed() }

// running returns the place, or nil before it runs.
func (b *box) running() place {
	select {
	case <-b.started:
		return b.place
	default:
		return nil
	}
}
