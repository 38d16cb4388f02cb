package docker

import (
	"context"
	"errors"
	"slices"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
)

// Labels of the objects that this package makes on a daemon.
const (
	labelBuild   = "dev.stepmux.build"   // the build's ID
	labelImage   = "dev.stepmux.image"   // the image's name
	labelProgram = "dev.stepmux.program" // of a volume: the program's platform
)

const (
	// reapEvery is how often we look for containers that were left.
	reapEvery = time.Minute
	// reapTimeout bounds one look.
	reapTimeout = time.Minute
)

// startLimit is how long a manager may take between the creation of a container and its start. One that was not started
// by then has no living manager. Tests change it.
var startLimit = 2 * time.Minute

// reap removes containers that a manager or a daemon left when it died. It leaves those alone that run: they end with
// their manager, or, if the daemon does not tell them, when they hear nothing of their manager.
func (c *Container) reap(ctx context.Context) {
	_, _ = c.cfg.Daemon.reaped.Do(ctx, func(ctx context.Context) (struct{}, time.Duration, error) {
		ctx, cancel := context.WithTimeout(ctx, reapTimeout)
		defer cancel()
		if err := c.reapNow(ctx); err != nil && ctx.Err() == nil {
			c.cfg.Logger.Warn("containers that were left could not be removed", "error", err)
		}
		return struct{}{}, reapEvery, nil
	})
}

func (c *Container) reapNow(ctx context.Context) error {
	const op = "look for containers that were left"
	dead := []container.ContainerState{container.StateCreated, container.StateExited, container.StateDead}
	found, err := c.api.ContainerList(ctx, client.ContainerListOptions{
		All:     true,
		Filters: make(client.Filters).Add("label", labelBuild).Add("status", asText(dead)...),
	})
	if err != nil {
		return c.api.failure(ctx, op, err)
	}
	if len(found.Items) == 0 {
		return nil
	}
	told, err := c.api.Info(ctx, client.InfoOptions{})
	if err != nil {
		return c.api.failure(ctx, op, err)
	}
	now, err := time.Parse(time.RFC3339Nano, told.Info.SystemTime) // its clock may be another than ours
	if err != nil {
		return c.api.failure(ctx, op, err)
	}
	var failed []error
	for _, left := range found.Items {
		if now.Sub(time.Unix(left.Created, 0)) < startLimit || !slices.Contains(dead, left.State) {
			continue
		}
		// Without force: it may have been started meanwhile.
		_, err := c.api.ContainerRemove(ctx, left.ID, client.ContainerRemoveOptions{RemoveVolumes: true})
		switch {
		case err == nil:
			c.cfg.Logger.Info("container that was left removed", "build", left.Labels[labelBuild], "container", left.ID[:12])
		case !cerrdefs.IsNotFound(err) && !cerrdefs.IsConflict(err):
			failed = append(failed, c.api.failure(ctx, op, err))
		}
	}
	return errors.Join(failed...)
}

func asText[T ~string](all []T) []string {
	texts := make([]string, len(all))
	for i, one := range all {
		texts[i] = string(one)
	}
	return texts
}
