package kubernetes

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/services"
	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/mux"
)

const (
	defaultServiceTimeout = time.Minute
	maxServices           = 50
)

// Service is a container beside the steps', such as a database, in the same pod. It shares the pod's network, where
// its alias is a name for 127.0.0.1. It is ready when it runs, its readiness probe (if the template has one)
// succeeds, and it accepts connections at the TCP port in HEALTHCHECK_TCP_PORT of its environment (if set).
type Service struct {
	// Image is the image's name. Required.
	Image string
	// Alias is its host name for the build and, without dots, the name of its container. If empty, the last part of
	// the image's name.
	Alias string
	// Entrypoint and Command replace the image's. If empty, the image's are used. An Entrypoint of one empty word is
	// none: the Command is run by itself.
	Entrypoint, Command []string
	// Env is added to the image's environment, as KEY=VALUE.
	Env []string
}

// aliasPattern matches the host names of services.
var aliasPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)

// alias returns the service's host name.
func (s *Service) alias() string { return services.Alias(s.Alias, s.Image) }

// container returns the name of the service's container.
func (s *Service) container() string { return strings.ReplaceAll(s.alias(), ".", "-") }

// port returns the TCP port that shows whether the service is ready, or 0 without one.
func (s *Service) port() (int, error) { return services.Port(s.Image, s.Env) }

// checkServices returns an error for services that cannot be in one pod together.
func (s *Spec) checkServices() error {
	if len(s.Services) > maxServices {
		return fmt.Errorf("%d services: a build may have %d", len(s.Services), maxServices)
	}
	seen := map[string]bool{initName: true, buildName: true}
	for i := range s.Services {
		one := &s.Services[i]
		if err := checkImage(one.Image); err != nil {
			return fmt.Errorf("service: %w", err)
		}
		switch in := one.container(); {
		case !aliasPattern.MatchString(one.alias()):
			return fmt.Errorf("service %.160q: the alias %.80q is no host name of small letters; give it another", one.Image,
				one.alias())
		case seen[in]:
			return fmt.Errorf("service %.160q: another container has the name %.80q, too; give it an alias of its own",
				one.Image, in)
		default:
			seen[in] = true
		}
		if _, err := one.port(); err != nil {
			return err
		}
	}
	return nil
}

// addServices adds the services to the spec of a pod, as sidecars: they start before the steps' container and end
// after it, so that the pod ends when that does. Each has the limits of the steps' container, and requests nothing. The
// template may add fields to a service, and set other limits, by an init container with its name.
func (s *Spec) addServices(pod, limits dict) []any {
	var sidecars, hosts []any
	for i := range s.Services {
		one := &s.Services[i]
		in := take(pod, "initContainers", one.container())
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
		sidecars, hosts = append(sidecars, in), append(hosts, one.alias())
	}
	if len(hosts) > 0 {
		pod["hostAliases"] = append(list(pod, "hostAliases"), dict{"ip": "127.0.0.1", "hostnames": hosts})
	}
	return sidecars
}

// awaitServices waits until all services are ready.
func (p *Pod) awaitServices(ctx context.Context) error {
	limit := cmp.Or(p.cfg.Spec.ServiceTimeout, defaultServiceTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it was not ready within %v", limit))
	defer cancel()
	for i := range p.cfg.Spec.Services {
		s := &p.cfg.Spec.Services[i]
		if err := p.awaitService(ctx, s); err != nil {
			return fmt.Errorf("service %s: %w", s.alias(), err)
		}
	}
	return nil
}

func (p *Pod) awaitService(ctx context.Context, s *Service) error {
	seen, err := p.await(ctx, func(o *object) bool {
		is := o.container(s.container())
		return is.Ready || is.lastEnd() != nil
	})
	if err != nil {
		return err
	}
	is := seen.container(s.container())
	if end := is.lastEnd(); end != nil {
		return p.because("it ended: "+end.text(), false)
	}
	p.cfg.Say("service %s: image %.160s is %s", s.alias(), s.Image, foreignText(cmp.Or(is.ImageID, s.Image)))
	port, err := s.port()
	if err != nil || port == 0 {
		return err
	}
	at := net.JoinHostPort(s.alias(), strconv.Itoa(port))
	ctx, stop := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stop(nil)
	watching.Go(func() { stop(p.awaitServiceEnd(ctx, s)) })
	err = persist(ctx, passingExec(), func() error { return p.awaitPort(ctx, at) })
	if ctx.Err() != nil {
		return fmt.Errorf("it accepts no connection at %s: %w", at, context.Cause(ctx))
	}
	return err
}

// awaitServiceEnd waits until the service or the pod has ended, and returns the reason.
func (p *Pod) awaitServiceEnd(ctx context.Context, s *Service) error {
	var end *termination
	_, err := p.await(ctx, func(o *object) bool {
		is := o.container(s.container())
		end = is.lastEnd()
		return end != nil
	})
	if err != nil {
		return err
	}
	return p.because("it ended: "+end.text(), false)
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
