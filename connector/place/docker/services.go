package docker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"golang.org/x/sync/errgroup"

	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/mux"
)

// healthEvery is how often a service with a health check is looked at.
const healthEvery = 100 * time.Millisecond

// service is a service of a build.
type service struct {
	place.Service
	id string // empty before it was created
}

// createNetwork makes the network of the build, if it has services.
func (c *Container) createNetwork(ctx context.Context) error {
	if len(c.cfg.Spec.Services) == 0 {
		return nil
	}
	_, err := c.api.NetworkCreate(ctx, c.name, client.NetworkCreateOptions{Labels: c.labels("")})
	if err != nil {
		return c.api.failure(ctx, "create the network of the services", err)
	}
	c.network = c.name
	return nil
}

// startServices starts the services and waits until all are ready. The build's container runs by now: a service whose
// container is gone has no use, so a reaper knows which ones are left.
func (c *Container) startServices(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, one := range c.cfg.Spec.Services {
		s := &service{Service: one}
		group.Go(func() error {
			if err := c.startService(ctx, s); err != nil {
				return fmt.Errorf("service %s: %w", s.Host(), err)
			}
			return nil
		})
	}
	return group.Wait()
}

// serviceLog bounds the log of a service, which the daemon keeps on its disk: a job chooses its services.
var serviceLog = container.LogConfig{Type: "local", Config: map[string]string{"max-size": "5m", "max-file": "2"}}

func (c *Container) startService(ctx context.Context, s *service) error {
	image, err := c.findImage(ctx, s.Image)
	if err != nil {
		return err
	}
	c.cfg.Say("service %s: image %.160s is %s", s.Host(), s.Image, cmp.Or(image.digest, image.id))
	limit := cmp.Or(c.cfg.Spec.ServiceTimeout, place.DefaultServiceTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the service was not ready within %v", limit))
	defer cancel()
	labels := c.labels(s.Image)
	labels[labelService] = s.Host()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	whole, end := c.whole(ctx)
	defer end()
	check := healthOf(s.Health)
	made, err := c.api.ContainerCreate(whole, client.ContainerCreateOptions{
		Name: c.name + "-" + s.Host(), Platform: c.cfg.Spec.platform(),
		Config: &container.Config{
			Image: image.id, Labels: labels, Entrypoint: s.Entrypoint, Cmd: s.Command, Env: s.Env,
			Healthcheck: check,
		},
		HostConfig: &container.HostConfig{
			NetworkMode: container.NetworkMode(c.network), Resources: c.cfg.Spec.resources(), LogConfig: serviceLog,
		},
		NetworkingConfig: &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{
			c.network: {Aliases: []string{s.Host()}},
		}},
	})
	if err != nil {
		return c.api.failure(whole, "create container", err)
	}
	s.id = made.ID
	c.mu.Lock()
	c.services = append(c.services, s)
	c.mu.Unlock()
	if _, err := c.api.ContainerStart(ctx, s.id, client.ContainerStartOptions{}); err != nil {
		return c.api.failure(ctx, "start container", err)
	}
	if check != nil {
		image.checked = !s.Health.Disabled && (image.checked || s.Health.Test != "")
	}
	if err := c.awaitService(ctx, s, &image); err != nil {
		return c.withLog(ctx, s, err)
	}
	return nil
}

// healthOf returns a health check for the daemon, or nil for that of the image.
func healthOf(h *place.Health) *container.HealthConfig {
	if h == nil {
		return nil
	}
	check := &container.HealthConfig{
		Interval: h.Interval, Timeout: h.Timeout, StartPeriod: h.StartPeriod, Retries: h.Retries,
	}
	switch {
	case h.Disabled:
		check = &container.HealthConfig{Test: []string{"NONE"}}
	case h.Test != "":
		check.Test = []string{"CMD-SHELL", h.Test}
	}
	return check
}

// awaitService waits until the service is ready, or has ended.
func (c *Container) awaitService(ctx context.Context, s *service, image *picture) error {
	ended := c.api.ContainerWait(ctx, s.id, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ready := make(chan error, 1)
	c.wg.Go(func() {
		if image.checked {
			ready <- c.awaitHealth(ctx, s)
		} else {
			ready <- c.awaitPorts(ctx, s, image.ports)
		}
	})
	select {
	case err := <-ready:
		return err
	case end := <-ended.Result:
		return fmt.Errorf("the service ended with exit status %d", end.StatusCode)
	case err := <-ended.Error:
		if ctx.Err() != nil {
			return <-ready // it says what was missing
		}
		return c.api.failure(ctx, "wait for the container", err)
	}
}

// awaitHealth waits until the service's health check succeeds.
func (c *Container) awaitHealth(ctx context.Context, s *service) error {
	tick := time.NewTicker(healthEvery)
	defer tick.Stop()
	for {
		told, err := c.api.ContainerInspect(ctx, s.id, client.ContainerInspectOptions{})
		if err != nil {
			return c.api.failure(ctx, "look at the container", err)
		}
		if state := told.Container.State; state != nil && state.Health != nil {
			switch state.Health.Status { //nolint:exhaustive // it is not ready yet
			case container.Healthy:
				return nil
			case container.Unhealthy:
				return errors.New("the service's health check fails")
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the service's health check did not succeed: %w", context.Cause(ctx))
		}
	}
}

// awaitPorts waits until the service accepts connections from the build's container.
func (c *Container) awaitPorts(ctx context.Context, s *service, ports []string) error {
	if port, _ := s.Port(); port > 0 { // Spec.Check has returned its error
		ports = []string{strconv.Itoa(port) + "/tcp"}
	}
	argv := []string{"/proc/self/exe", "steps", "await"}
	for _, port := range ports {
		if number, ok := strings.CutSuffix(port, "/tcp"); ok {
			argv = append(argv, "--tcp", s.Host()+":"+number)
		}
	}
	if len(argv) == 3 {
		return nil
	}
	stderr := &tail.Writer{}
	process, err := c.relay.Start(ctx, mux.Command{Argv: argv, Stderr: stderr})
	if err != nil {
		return err
	}
	defer process.Close()
	err = process.Wait(ctx)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("the service accepts no connection at %s: %w", strings.Join(ports, ", "), context.Cause(ctx))
	case err != nil:
		return fmt.Errorf("wait for its ports: %w: %s", err, stderr)
	default:
		return nil
	}
}

// withLog returns err with the last lines that the service wrote.
func (c *Container) withLog(ctx context.Context, s *service, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endGrace)
	defer cancel()
	log, logErr := c.api.ContainerLogs(ctx, s.id, client.ContainerLogsOptions{
		ShowStdout: true, ShowStderr: true, Tail: "5",
	})
	if logErr != nil {
		return err
	}
	defer log.Close()
	var text bytes.Buffer
	_, _ = stdcopy.StdCopy(&text, &text, io.LimitReader(log, 64<<10)) // as much as there is
	if said := tail.Lines(text.Bytes()[max(0, text.Len()-tail.MaxBytes):]); said != "" {
		err = fmt.Errorf("%w; it said: %w", err, &daemonError{errors.New(said)})
	}
	return err
}

// removeServices removes the services with their volumes, and then their network.
func (c *Container) removeServices(ctx context.Context) error {
	c.mu.Lock()
	all := c.services
	c.mu.Unlock()
	errs := make([]error, len(all)+1)
	var group errgroup.Group
	for i, s := range all {
		group.Go(func() error {
			errs[i] = c.remove(ctx, s.id)
			return nil
		})
	}
	_ = group.Wait() // nil
	if c.network != "" {
		_, err := c.api.NetworkRemove(ctx, c.network, client.NetworkRemoveOptions{})
		if err != nil && !cerrdefs.IsNotFound(err) {
			errs[len(all)] = c.api.failure(ctx, "remove the network of the services", err)
		}
	}
	return errors.Join(errs...)
}
