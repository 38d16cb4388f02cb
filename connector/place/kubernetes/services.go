package kubernetes

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/mux"
)

// containerName returns the name of the container of a service with this alias.
func containerName(alias string) string { return strings.ReplaceAll(alias, ".", "-") }

// containerOf returns the name of a service's container.
func containerOf(s *place.Service) string { return containerName(s.Host()) }

// addServices adds the services to the spec of a pod, as sidecars: they start before the steps' container and end
// after it, so that the pod ends when that does. Each has the limits of the steps' container, and requests nothing. The
// template may add fields to a service, and set other limits, by an init container with its name.
func (s *Spec) addServices(pod, limits dict) []any {
	var sidecars, hosts []any
	for i := range s.Services {
		one := &s.Services[i]
		in := take(pod, "initContainers", containerOf(one))
		in["image"], in["restartPolicy"] = one.Image, "Always"
		setDefault(in, "terminationMessagePolicy", "FallbackToLogsOnError")
		if pull := pulls[s.Pull]; pull != "" {
			in["imagePullPolicy"] = pull
		}
		if in["resources"] == nil {
			// Without requests of nothing, the limits would be the requests, too. Devices are for the steps alone.
			own, nothing := dict{}, dict{}
			for _, what := range []string{"cpu", "memory", "ephemeral-storage"} {
				if limit, ok := limits[what]; ok {
					own[what], nothing[what] = limit, "0"
				}
			}
			in["resources"] = dict{"limits": own, "requests": nothing}
		}
		command, args := one.Entrypoint, one.Command
		if len(command) == 1 && command[0] == "" {
			command, args = args, nil
		}
		if len(command) > 0 {
			in["command"] = literal(command)
		}
		if len(args) > 0 {
			in["args"] = literal(args)
		}
		for _, entry := range literal(one.Env) {
			key, value, _ := strings.Cut(entry, "=")
			in["env"] = append(list(in, "env"), dict{"name": key, "value": value})
		}
		if h := one.Health; h != nil && h.Test != "" && !h.Disabled {
			setDefault(in, "readinessProbe", probeOf(h))
		}
		sidecars, hosts = append(sidecars, in), append(hosts, one.Host())
	}
	if len(hosts) > 0 {
		pod["hostAliases"] = append(list(pod, "hostAliases"), dict{"ip": "127.0.0.1", "hostnames": hosts})
	}
	return sidecars
}

// probeOf returns a health check as a readiness probe.
func probeOf(h *place.Health) dict {
	probe := dict{"exec": dict{"command": []any{"/bin/sh", "-c", h.Test}}, "failureThreshold": cmp.Or(h.Retries, 3)}
	for key, d := range map[string]time.Duration{"periodSeconds": h.Interval, "timeoutSeconds": h.Timeout} {
		if d > 0 {
			probe[key] = int64(max(d.Round(time.Second), time.Second) / time.Second)
		}
	}
	return probe
}

// awaitServices waits until all services are ready.
func (p *Pod) awaitServices(ctx context.Context) error {
	limit := cmp.Or(p.cfg.Spec.ServiceTimeout, place.DefaultServiceTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the service was not ready within %v", limit))
	defer cancel()
	for i := range p.cfg.Spec.Services {
		s := &p.cfg.Spec.Services[i]
		if err := p.awaitService(ctx, s); err != nil {
			return fmt.Errorf("service %s: %w", s.Host(), err)
		}
	}
	return nil
}

func (p *Pod) awaitService(ctx context.Context, s *place.Service) error {
	seen, err := p.await(ctx, func(o *object) bool {
		is := o.container(containerOf(s))
		return is.Ready || is.lastEnd() != nil
	})
	if err != nil {
		return err
	}
	is := seen.container(containerOf(s))
	if end := is.lastEnd(); end != nil {
		return p.because("the service ended: "+end.text(), false)
	}
	p.cfg.Say("service %s: image %.160s is %s", s.Host(), s.Image, foreignText(cmp.Or(is.ImageID, s.Image)))
	port, err := s.Port()
	if err != nil || port == 0 {
		return err
	}
	at := net.JoinHostPort(s.Host(), strconv.Itoa(port))
	ctx, stop := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stop(nil)
	watching.Go(func() { stop(p.awaitServiceEnd(ctx, s)) })
	err = persist(ctx, passingExec(), func() error { return p.awaitPort(ctx, at) })
	if ctx.Err() != nil {
		return fmt.Errorf("the service accepts no connection at %s: %w", at, context.Cause(ctx))
	}
	return err
}

// awaitServiceEnd waits until the service or the pod has ended, and returns the reason.
func (p *Pod) awaitServiceEnd(ctx context.Context, s *place.Service) error {
	var end *termination
	_, err := p.await(ctx, func(o *object) bool {
		is := o.container(containerOf(s))
		end = is.lastEnd()
		return end != nil
	})
	if err != nil {
		return err
	}
	return p.because("the service ended: "+end.text(), false)
}

// awaitPort waits until connections are accepted at an address in the pod.
func (p *Pod) awaitPort(ctx context.Context, at string) error {
	if p.first.relay.Err() != nil { // the link was cut
		if err := p.startLink(ctx); err != nil {
			return err
		}
	}
	stderr := &tail.Writer{}
	process, err := p.first.Start(ctx, mux.Command{
		Argv: []string{"/proc/self/exe", "steps", "await", "--tcp", at}, Stderr: stderr,
	})
	if err != nil {
		return err
	}
	defer process.Close()
	if err := process.Wait(ctx); err != nil {
		return fmt.Errorf("wait for %s: %w: %s", at, err, stderr)
	}
	return nil
}
