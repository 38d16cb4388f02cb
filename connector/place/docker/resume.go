package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/stepmux/stepmux/connector/place"
)

// At names the container to Attach, in another process.
func (c *Container) At() string { return cmp.Or(c.entered, c.id) }

// Leave lets Close leave the container of a build that lingers: it goes on there until another process attaches to it,
// or its linger ends. The daemon then removes the container. Its services stay until a later build starts there.
func (c *Container) Leave() { c.left.Store(true) }

// Attach returns the Container of a build that another process has started, by its At and with the same Spec, and a
// link to it, as of Reconnect. ctx bounds the call. The error is connector.ErrGone if the container has ended. The
// caller closes the Container, and by that removes it, unless Leave is called.
func Attach(ctx context.Context, cfg Config, at string) (c, link *Container, err error) {
	if err := cfg.check(); err != nil {
		return nil, nil, err
	}
	if at == "" || cfg.Linger == 0 {
		return nil, nil, errors.New("docker: Attach to no container, or to that of a build that does not linger")
	}
	if c, err = newContainer(ctx, cfg); err != nil {
		return nil, nil, err
	}
	if err = c.attach(ctx, at); err == nil {
		link, err = c.Reconnect(ctx)
	}
	if err != nil {
		c.Leave() // it may be another's now, and ends by itself
		_ = c.Close(ctx)
		return nil, nil, err
	}
	return c, link, nil
}

// attach finds the container, its image and its services.
func (c *Container) attach(ctx context.Context, at string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.ReadyTimeout,
		fmt.Errorf("the Docker daemon did not answer within %v", c.cfg.ReadyTimeout))
	defer cancel()
	daemon, err := c.cfg.Daemon.look(ctx, c.api)
	if err != nil {
		return err
	}
	one, err := c.inspectAgain(ctx, at)
	if err != nil {
		return err
	}
	if c.cfg.Spec.Container != "" {
		c.started = time.Now() // since then: the container has other builds
		return c.prepare(ctx, daemon, one)
	}
	if c.started, err = time.Parse(time.RFC3339Nano, one.State.StartedAt); err != nil {
		return fmt.Errorf("find out when container %.12s was started: %w", at, &daemonError{err})
	}
	if one.Config == nil || one.Config.Labels[labelBuild] != c.cfg.BuildID {
		return fmt.Errorf("container %.12s is not that of the build %s", at, c.cfg.BuildID)
	}
	c.id, c.name = one.ID, one.Config.Labels[labelGroup]
	if c.image, err = c.inspectImage(ctx, one.Image, one.Config.Labels[labelImage]); err != nil {
		return err
	}
	c.chooseDir()
	if err := c.findServices(ctx); err != nil {
		return err
	}
	c.await(ctx, c.id, container.WaitConditionRemoved)
	return nil
}

// findServices finds the services of the build.
func (c *Container) findServices(ctx context.Context) error {
	if len(c.cfg.Spec.Services) == 0 {
		return nil
	}
	c.network = c.name
	found, err := c.api.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: make(client.Filters).Add("label", labelGroup+"="+c.name).Add("label", labelService),
	})
	if err != nil {
		return c.api.failure(ctx, "look for the services of the build", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range found.Items {
		one := &found.Items[i]
		c.services = append(c.services, &service{place.Service{Alias: one.Labels[labelService]}, one.ID})
	}
	return nil
}
