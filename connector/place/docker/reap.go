package docker

import (
	"context"
	"errors"
	"fmt"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/stepmux/stepmux/internal/pause"
)

// Labels of the objects that this package makes on a daemon.
const (
	labelBuild   = "dev.stepmux.build"   // the build's ID
	labelGroup   = "dev.stepmux.group"   // the name of the build's container, for all that belongs to it
	labelService = "dev.stepmux.service" // the alias of a service
	labelImage   = "dev.stepmux.image"   // the image's name
	labelManager = "dev.stepmux.manager" // the process that made it
	labelProgram = "dev.stepmux.program" // of a volume: the program's platform
)

const (
	// reapEvery is how often we look for containers that were left, at most. It is reapSoon while a manager of this
	// machine is dead whose containers still run: their services and networks are left in a moment.
	reapEvery = time.Minute
	reapSoon  = 5 * time.Second
	// reapTimeout bounds one look.
	reapTimeout = time.Minute
	// removeLimit bounds the removal of one object.
	removeLimit = 2 * time.Second
)

// startLimit is how long a manager of another machine may take between the creation of a container and its start. One
// that was not started by then has no living manager. Tests change it.
var startLimit = 2 * time.Minute

// reap removes containers and networks that a manager or a daemon left when it died. A build's container that runs is
// left alone: it ends with its manager, or, if the daemon does not tell it, when it hears nothing of its manager. Its
// services and its network are made for it, so without it they are of no use.
func (c *Container) reap(ctx context.Context) {
	for again := true; again; again = again && pause.For(ctx, reapSoon) == nil {
		again, _ = c.cfg.Daemon.reaped.Do(ctx, func(ctx context.Context) (bool, time.Duration, error) {
			ctx, cancel := context.WithTimeout(ctx, reapTimeout)
			defer cancel()
			again, err := c.reapNow(ctx)
			if err != nil && ctx.Err() == nil {
				c.cfg.Logger.Warn("containers that were left could not be removed", "error", err)
			}
			if again {
				return true, reapSoon, nil
			}
			return false, reapEvery, nil
		})
	}
}

// reapNow looks once. again tells that the container of a dead manager still runs.
func (c *Container) reapNow(ctx context.Context) (again bool, err error) {
	const op = "look for containers that were left"
	ours := make(client.Filters).Add("label", labelBuild)
	networks, err := c.api.NetworkList(ctx, client.NetworkListOptions{Filters: ours})
	if err != nil {
		return false, c.api.failure(ctx, op, err)
	}
	// After the networks: a build's container is made after its network, possibly between the two lists.
	containers, err := c.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: ours})
	if err != nil {
		return false, c.api.failure(ctx, op, err)
	}
	told, err := c.api.Info(ctx, client.InfoOptions{})
	if err != nil {
		return false, c.api.failure(ctx, op, err)
	}
	now, err := time.Parse(time.RFC3339Nano, told.Info.SystemTime) // its clock may be another than ours
	if err != nil {
		return false, c.api.failure(ctx, op, err)
	}
	abandoned := func(labels map[string]string, made time.Time) bool {
		return isDead(labels[labelManager]) || now.Sub(made) >= startLimit
	}
	living := map[string]bool{c.name: true}
	for _, one := range containers.Items {
		_, isService := one.Labels[labelService]
		running := one.State != container.StateCreated && one.State != container.StateExited &&
			one.State != container.StateDead
		if !isService && (running || !abandoned(one.Labels, time.Unix(one.Created, 0))) {
			living[one.Labels[labelGroup]] = true
			again = again || isDead(one.Labels[labelManager])
		}
	}
	var failed []error
	for _, one := range containers.Items {
		group := one.Labels[labelGroup]
		if living[group] {
			continue
		}
		_, isService := one.Labels[labelService]
		// Only services by force: another container may have been started in between.
		err := patiently(ctx, func(ctx context.Context) error {
			_, err := c.api.ContainerRemove(ctx, one.ID, client.ContainerRemoveOptions{RemoveVolumes: true, Force: isService})
			return err
		})
		switch {
		case err == nil:
			c.cfg.Logger.Info("container that was left removed", "build", one.Labels[labelBuild], "container", one.ID)
		case !cerrdefs.IsNotFound(err) && !cerrdefs.IsConflict(err):
			failed = append(failed, c.api.failure(ctx, op, err))
		}
	}
	for _, one := range networks.Items {
		if living[one.Labels[labelGroup]] || !abandoned(one.Labels, one.Created) {
			continue
		}
		err := patiently(ctx, func(ctx context.Context) error {
			_, err := c.api.NetworkRemove(ctx, one.ID, client.NetworkRemoveOptions{})
			return err
		})
		if err != nil && !cerrdefs.IsNotFound(err) {
			failed = append(failed, c.api.failure(ctx, op, err))
		}
	}
	return again, errors.Join(failed...)
}

// patiently calls remove until it succeeds or finds nothing, for removeLimit at most: the daemon may still be busy with
// a start that the manager asked for before it died, or with an upload into a container that a living one made long
// ago.
func patiently(ctx context.Context, remove func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, removeLimit, fmt.Errorf("the removal took longer than %v", removeLimit))
	defer cancel()
	err := remove(ctx)
	for err != nil && !cerrdefs.IsNotFound(err) && pause.For(ctx, removeAgain) == nil {
		err = remove(ctx)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return context.Cause(ctx)
	}
	return err
}
