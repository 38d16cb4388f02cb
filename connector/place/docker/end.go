package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/mux"
)

const (
	// endGrace is how long a container may take to end by itself once we have hung up.
	endGrace = 5 * time.Second
	// eventDelay is how long a busy daemon may take to tell of a process that was killed.
	eventDelay = 3 * time.Second
	// removeAgain is how long a daemon that cannot remove a container is left alone.
	removeAgain = 200 * time.Millisecond
)

// await lets a goroutine wait for a container's end. It returns when the daemon has heard of that, or cannot. If ctx
// ends before that, the end is not known.
func (c *Container) await(ctx context.Context, id string, end container.WaitCondition) {
	life, cancel := context.WithCancel(c.life)
	heard := context.AfterFunc(ctx, cancel)
	//nolint:contextcheck // the wait outlives ctx
	waiting := c.api.ContainerWait(life, id, client.ContainerWaitOptions{Condition: end})
	heard()
	c.wg.Go(func() {
		defer cancel()
		defer close(c.gone)
		select {
		case end := <-waiting.Result:
			c.status = int(end.StatusCode)
			if end.Error != nil {
				c.lost = &daemonError{errors.New(end.Error.Message)}
			}
		case err := <-waiting.Error:
			c.lost = &daemonError{err}
		}
	})
}

// Explain implements place.Place.
func (c *Container) Explain(ctx context.Context, err error) error {
	if mux.IsLost(err) || errors.Is(err, connector.ErrGone) {
		return c.explain(ctx, err)
	}
	return err
}

// explain returns err with the reason why the container has ended, if it has or does so at once. ctx bounds the wait.
func (c *Container) explain(ctx context.Context, err error) error {
	timer := time.NewTimer(endGrace)
	defer timer.Stop()
	select {
	case <-c.gone:
	case <-timer.C:
		return err
	case <-ctx.Done():
		return err
	}
	switch {
	case c.lost != nil && errors.Is(err, connector.ErrGone): // learnt since then
		return err
	case c.lost != nil:
		return fmt.Errorf("the connection to the Docker daemon was lost: %w (%w)", c.lost, err)
	case c.status != place.Killed:
		return fmt.Errorf("the container ended with exit status %d: %w", c.status, err)
	case c.outOfMemory(ctx):
		return fmt.Errorf("the container ran out of memory%s and was killed: %w", place.LimitText(c.cfg.Spec.Memory), err)
	default:
		return fmt.Errorf("the container was killed: %w", err)
	}
}

// Note implements place.Place.
func (c *Container) Note(ctx context.Context, exitCode int) {
	if exitCode == place.Killed && c.outOfMemory(ctx) {
		c.cfg.Say("a process was killed: the container ran out of memory%s", place.LimitText(c.cfg.Spec.Memory))
	}
}

// outOfMemory reports whether the daemon has seen that a process of the container was killed because the container had
// too little memory.
func (c *Container) outOfMemory(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, endGrace)
	defer cancel()
	found := c.api.Events(ctx, client.EventsListOptions{
		Since:   strconv.FormatInt(c.started.Add(-time.Minute).Unix(), 10), // its clock may be another
		Until:   strconv.FormatInt(time.Now().Add(eventDelay).Unix(), 10),  // then it hangs up
		Filters: make(client.Filters).Add("container", cmp.Or(c.entered, c.id)).Add("event", string(events.ActionOOM)),
	})
	select {
	case <-found.Messages:
		return true
	case err := <-found.Err:
		c.cfg.Logger.Debug("the Docker daemon tells nothing of memory", "error", err)
		return false
	}
}

// Close removes the container, its services and their network, and so ends all that runs there. A container that was
// there before is left, and only the step runner in it ends. After Leave all of it stays. Close waits until the daemon
// has done so, at most until ctx ends or StopTimeout has passed; then its error names the container. Idempotent:
// later calls wait for the first and return its result. Calls that wait on the relay return an error.
func (c *Container) Close(ctx context.Context) error {
	c.closeOnce.Do(func() {
		ctx, cancel := context.WithTimeout(ctx, c.cfg.StopTimeout)
		defer cancel()
		if c.relay != nil {
			_ = c.relay.Close() // always nil; the relay's stdin ends, and the container with it
		}
		if !c.left.Load() && !c.again { // a link's container is another Container's to end
			c.closeErr = c.end(ctx)
		}
		c.endLife()
		c.wg.Wait()
		_ = c.api.Close() // always nil
	})
	return c.closeErr
}

// end does the work of Close at the daemon.
func (c *Container) end(ctx context.Context) (err error) {
	switch {
	case c.entered != "":
		err = c.leave(ctx)
	case c.relay != nil:
		c.awaitEnd(ctx)
	}
	left := c.remove(ctx, c.id)
	c.removed.Store(left == nil && c.id != "")
	err = errors.Join(err, left, c.removeServices(ctx))
	_ = c.cfg.Daemon.reaped.Wait(ctx) // a short build would cut off the removal of what was left
	return err
}

// awaitEnd gives the container time to end by itself.
func (c *Container) awaitEnd(ctx context.Context) {
	timer := time.NewTimer(min(endGrace, c.cfg.StopTimeout/3)) // the removal needs the rest
	defer timer.Stop()
	select {
	case <-c.gone:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// remove removes a container and its anonymous volumes, unless it is gone.
func (c *Container) remove(ctx context.Context, id string) error {
	if id == "" || id == c.id && c.Removed() {
		return nil
	}
	_, err := c.api.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	for cerrdefs.IsInternal(err) && pause.For(ctx, removeAgain) == nil { // its containerd starts again
		_, err = c.api.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	}
	if cerrdefs.IsConflict(err) { // its removal is under way
		waiting := c.api.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionRemoved})
		select {
		case <-waiting.Result:
			return nil
		case err = <-waiting.Error:
		}
	}
	if err == nil || cerrdefs.IsNotFound(err) {
		return nil
	}
	return c.api.failure(ctx, fmt.Sprintf("remove container %.12s", id), err)
}

// Removed reports whether the container was seen removed, or stopped if it was there before.
func (c *Container) Removed() bool {
	if c.removed.Load() {
		return true
	}
	select {
	case <-c.gone:
		return c.lost == nil
	default:
		return false
	}
}
