package docker

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/internal/flight"
	"github.com/stepmux/stepmux/internal/plural"
)

// factsFor is how long a daemon's description of itself holds: it may be upgraded.
const factsFor = 10 * time.Minute

// Daemon remembers facts about one Docker daemon for all its builds. The zero value knows nothing yet. It is safe for
// concurrent use.
type Daemon struct {
	facts  flight.Flight[facts]
	reaped flight.Flight[bool]

	mu       sync.Mutex                        // guards the following
	programs flights                           // by SHA-256 of the program, or container and it
	pulls    flights                           // under way, by platform and name of the image
	logins   map[string]*flight.Flight[string] // by registry
	turns    chan struct{}                     // has an element for each container that is being started
}

// startsAtOnce is how many containers a daemon is asked to start at the same time. It starts them one after the other
// for the most part, so more would only use up their ReadyTimeout there.
const startsAtOnce = 16

// turn waits until another container may be started. The caller calls done when it has.
func (d *Daemon) turn(ctx context.Context) (done func(), err error) {
	d.mu.Lock()
	if d.turns == nil {
		d.turns = make(chan struct{}, startsAtOnce)
	}
	turns := d.turns
	d.mu.Unlock()
	select {
	case turns <- struct{}{}:
		return func() { <-turns }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// facts describe a daemon.
type facts struct {
	api      string // the version of the API to use
	platform string // os/arch as Go names them
	podman   bool   // it is podman's service, which has the same API
}

// look returns the daemon's facts.
func (d *Daemon) look(ctx context.Context, a *api) (facts, error) {
	return d.facts.Do(ctx, func(ctx context.Context) (facts, time.Duration, error) {
		ctx, cancel := a.asking(ctx)
		defer cancel()
		told, err := a.ServerVersion(ctx, client.ServerVersionOptions{})
		if err != nil {
			err = a.failure(ctx, "ask the Docker daemon for its version", err)
			if strings.Contains(err.Error(), "client version ") { // the daemon's API version is outside our range
				err = fmt.Errorf("%w (stepmux speaks the API from %s to %s)", err, client.MinAPIVersion, client.MaxAPIVersion)
			}
			return facts{}, 0, err
		}
		f := facts{api: a.ClientVersion(), platform: told.Os + "/" + told.Arch}
		if told.Os != "linux" {
			return facts{}, 0, fmt.Errorf("the Docker daemon runs containers of %.40q: only Linux can run builds", told.Os)
		}
		f.podman = slices.ContainsFunc(told.Components, func(c system.ComponentVersion) bool {
			return c.Name == "Podman Engine"
		})
		return f, factsFor, nil
	})
}

// About describes the daemon that dial connects to, for people. The error says why builds could not use it.
func About(ctx context.Context, dial func(context.Context) (net.Conn, error)) (string, error) {
	a, err := newAPI(dial, "", place.DefaultReadyTimeout)
	if err != nil {
		return "", err
	}
	defer func() { _ = a.Close() }() // always nil
	known, err := new(Daemon).look(ctx, a)
	if err != nil {
		return "", err
	}
	ctx, cancel := a.asking(ctx)
	defer cancel()
	told, err := a.Info(ctx, client.InfoOptions{})
	if err != nil {
		return "", a.failure(ctx, "ask the Docker daemon about itself", err)
	}
	return fmt.Sprintf("Docker %.40s for %s, API %s, files by %.40s, %s", told.Info.ServerVersion,
		known.platform, known.api, told.Info.Driver,
		plural.Count(told.Info.ContainersRunning, "running container")), nil
}

// flights are pieces of work by a key.
type flights map[string]*flight.Flight[struct{}]

// share does work once for all builds that want it at the same time. It is done over the connection of one of them, and
// maybe with its image. If it fails there, a build that has waited does it again.
func (d *Daemon) share(ctx context.Context, all *flights, key string, work flight.Work[struct{}]) (err error) {
	for range 2 {
		own := false
		_, err = d.flight(all, key).Do(ctx, func(ctx context.Context) (struct{}, time.Duration, error) {
			own = true
			return work(ctx)
		})
		if err == nil || ctx.Err() != nil || own {
			break
		}
	}
	return err
}

// flight returns the flight of a key, made if it is missing.
func (d *Daemon) flight(all *flights, key string) *flight.Flight[struct{}] {
	d.mu.Lock()
	defer d.mu.Unlock()
	if *all == nil {
		*all = flights{}
	}
	if (*all)[key] == nil {
		(*all)[key] = &flight.Flight[struct{}]{}
	}
	return (*all)[key]
}
