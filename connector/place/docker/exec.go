package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/mux/channel"
)

// The route exec: the build runs in a container that is there already. One exec starts the relay there, and its streams
// carry all bridges, as those of a container's main process do. The daemon ends the exec's stdin when our connection
// ends, so that the relay ends. It does not kill an exec, and has no call that waits for its end.

// execPoll is how often we ask whether an exec has ended.
const execPoll = 20 * time.Millisecond

// enter starts the relay in the container of the Spec, which it leaves running at the end.
func (c *Container) enter(ctx context.Context, daemon facts) error {
	name := c.cfg.Spec.Container
	op := fmt.Sprintf("run in container %.160q", name)
	one, err := c.inspect(ctx, op, name)
	switch {
	case err != nil:
		return err
	case !one.State.Running || one.State.Paused:
		return fmt.Errorf("%s: it does not run", op)
	}
	if err := c.prepare(ctx, daemon, one); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.ReadyTimeout,
		fmt.Errorf("the step runner was not ready within %v", c.cfg.ReadyTimeout))
	defer cancel()
	c.cfg.Say("container %.160s has image %.160s, %s", strings.TrimPrefix(one.Name, "/"), one.Config.Image, c.Image())
	c.started = time.Now()
	return c.startExec(ctx, op)
}

// prepare brings the program into a container that was there before.
func (c *Container) prepare(ctx context.Context, daemon facts, one *container.InspectResponse) error {
	c.entered = one.ID
	asking, cancel := c.api.asking(ctx)
	defer cancel()
	if image, err := c.api.ImageInspect(asking, one.Image); err == nil {
		c.image = pictureOf(&image.InspectResponse)
	} else { // it was removed while the container runs
		c.image = picture{id: one.Image, platform: daemon.platform}
	}
	bin, err := c.programFor(c.image.platform)
	if err != nil {
		return err
	}
	return c.bring(ctx, bin)
}

// inspect returns a container as the daemon describes it, with its state.
func (c *Container) inspect(ctx context.Context, op, id string) (*container.InspectResponse, error) {
	ctx, cancel := c.api.asking(ctx)
	defer cancel()
	told, err := c.api.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err == nil && told.Container.State == nil {
		err = errors.New("the daemon does not tell the container's state")
	}
	if err != nil {
		return nil, c.api.failure(ctx, op, err)
	}
	return &told.Container, nil
}

// Reconnect makes another link to the container of a build that lingers, whose last link was lost: an exec that starts
// a relay. ctx bounds that. The returned Container is the connection and the lease of the build's connector. Release
// and Close end the link; only Close of the Container of Start ends the container. The error is connector.ErrGone if
// the container is gone.
func (c *Container) Reconnect(ctx context.Context) (*Container, error) {
	next, err := newContainer(ctx, c.cfg)
	if err != nil {
		return nil, err
	}
	next.name, next.image, next.program, next.tempDir = c.name, c.image, c.program, c.tempDir
	next.entered, next.again, next.started = cmp.Or(c.entered, c.id), true, c.started
	if err := next.comeBack(ctx); err != nil {
		_ = next.Close(ctx) // nothing that could fail
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.execs = append(c.execs, next.execs...)
	return next, nil
}

func (c *Container) comeBack(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.ReadyTimeout,
		fmt.Errorf("the Docker daemon did not answer within %v", c.cfg.ReadyTimeout))
	defer cancel()
	if _, err := c.inspectAgain(ctx, c.entered); err != nil {
		return err
	}
	return c.startExec(ctx, comeBackOp(c.entered))
}

func comeBackOp(id string) string { return fmt.Sprintf("come back to container %.12s", id) }

// inspectAgain is inspect for the container of a build that lingers. The error is connector.ErrGone if it has ended.
func (c *Container) inspectAgain(ctx context.Context, id string) (*container.InspectResponse, error) {
	one, err := c.inspect(ctx, comeBackOp(id), id)
	if cerrdefs.IsNotFound(err) || err == nil && !one.State.Running {
		return nil, fmt.Errorf("%w: container %.12s has ended (was the Docker daemon restarted? A restart ends containers)",
			connector.ErrGone, id)
	}
	return one, err
}

// startExec starts the relay by an exec, and connects to it.
func (c *Container) startExec(ctx context.Context, op string) error {
	made, err := c.api.ExecCreate(ctx, c.entered, client.ExecCreateOptions{
		Cmd: c.command(), User: c.cfg.Spec.User, AttachStdin: true, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return c.api.failure(ctx, op, err)
	}
	c.await(ctx, c.entered, container.WaitConditionNotRunning)
	stream, err := c.api.ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
	if err != nil {
		return c.api.failure(ctx, op, c.missing(err))
	}
	c.execs = []string{made.ID}
	err = c.connect(ctx, &attached{stream: stream.HijackedResponse, stderr: c.stderr}, func(ctx context.Context) error {
		return c.execExit(ctx, made.ID)
	})
	exit := (*channel.ExitError)(nil)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &exit) && (exit.Status == notFound || exit.Status == notExecutable):
		return fmt.Errorf("%s: %w: %w", op, errProgramGone, err)
	default:
		return fmt.Errorf("%s: %w", op, err)
	}
}

// The exit statuses of an exec whose program is missing or cannot be run.
const notExecutable, notFound = 126, 127

// bring puts the program into the container, where it stays for later builds.
func (c *Container) bring(ctx context.Context, bin *program.Binary) error {
	sum, err := checksum(bin)
	if err != nil {
		return err
	}
	dir := place.Home + "/" + sum[:16]
	c.program, c.tempDir = dir+"/stepmux", place.RunDir
	d := c.cfg.Daemon
	return d.share(ctx, &d.programs, c.entered+sum, func(ctx context.Context) (struct{}, time.Duration, error) {
		return untilForgotten(c.put(ctx, c.entered, bin, dir, true))
	})
}

// execExit waits until an exec has ended, and returns an error for a bad end.
func (c *Container) execExit(ctx context.Context, id string) error {
	tick := time.NewTicker(execPoll)
	defer tick.Stop()
	gone := c.gone
	for {
		told, err := c.api.ExecInspect(ctx, id, client.ExecInspectOptions{})
		switch {
		case err != nil:
			return c.api.failure(ctx, "look whether the step runner has ended", err)
		case !told.Running && told.ExitCode != 0:
			return &channel.ExitError{Status: told.ExitCode}
		case !told.Running:
			return nil
		}
		select {
		case <-tick.C:
		case <-gone:
			if c.lost == nil {
				return nil // with all its processes
			}
			gone = nil // the link by which the daemon would tell was cut
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// leave waits until the relays in a container that was there before have ended, after their stdin.
func (c *Container) leave(ctx context.Context) error {
	c.mu.Lock()
	execs := c.execs
	c.mu.Unlock()
	for _, id := range execs {
		exit := (*channel.ExitError)(nil)
		if err := c.execExit(ctx, id); err != nil && !errors.As(err, &exit) && !c.Removed() {
			return fmt.Errorf("the step runner in container %.12s: %w", c.entered, err)
		}
	}
	return nil
}
