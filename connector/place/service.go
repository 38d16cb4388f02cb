package place

import (
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"
)

// Service is a container beside the build's, such as a database. It is ready when it runs, its health check or its
// readiness probe (of a pod's template) succeeds, and it accepts connections at the TCP port in
// HEALTHCHECK_TCP_PORT of its environment. Without that variable and without a health check, a container's service has
// to accept connections at the ports that its image exposes.
type Service struct {
	// Image is the image's name. Required.
	Image string
	// Alias is its host name for the build. If empty, the last part of the image's name.
	Alias string
	// Entrypoint and Command replace the image's. If empty, the image's are used. An Entrypoint of one empty word is
	// none: the Command is run by itself.
	Entrypoint, Command []string
	// Env is added to the image's environment, as KEY=VALUE.
	Env []string
	// Health is its health check. If nil, a container has that of its image; in a pod nothing checks it.
	Health *Health
}

// Health is a health check of a service, as the HEALTHCHECK of a Dockerfile describes it. In a pod it is a readiness
// probe, with whole seconds.
type Health struct {
	// Test is a command line for /bin/sh in the service's container. If empty, that of the image, or in a pod no
	// check.
	Test string
	// Disabled says that there is no health check, also if the image has one.
	Disabled bool
	// Interval is the time between two checks, Timeout bounds one, and failures in the StartPeriod do not count. If zero,
	// the defaults of the daemon or of the cluster.
	Interval, Timeout, StartPeriod time.Duration
	// Retries is how many checks in a row must fail for the service to be unhealthy. If zero, 3.
	Retries int
}

// check returns an error for a Health that no place takes.
func (h *Health) check() error {
	if h == nil {
		return nil
	}
	const longest, most = time.Hour, 10_000
	for _, d := range []time.Duration{h.Interval, h.Timeout, h.StartPeriod} {
		if d != 0 && d < time.Millisecond || d > longest {
			return fmt.Errorf("the health check has the time %v: use 1ms to %v", d, longest)
		}
	}
	if h.Retries < 0 || h.Retries > most || len(h.Test) > 64<<10 || strings.ContainsRune(h.Test, 0) {
		return fmt.Errorf("the health check has %d retries, and a test of %d bytes: use at most %d and 64 KiB of text",
			h.Retries, len(h.Test), most)
	}
	return nil
}

// portVariable of a service's environment names the TCP port at which it accepts connections when it is ready. An image
// may expose others, at which it does not listen unless it is configured to.
const portVariable = "HEALTHCHECK_TCP_PORT"

// Host returns the service's host name. It is empty if the image's name is invalid.
func (s *Service) Host() string {
	if s.Alias != "" {
		return s.Alias
	}
	ref, err := ParseImage(s.Image)
	if err != nil {
		return ""
	}
	return path.Base(ref.Context().RepositoryStr())
}

// Port returns the TCP port that the environment of the service names, or 0 if it names none. Of several entries with
// one key the last counts, as in the container. The error says which entry or port is wrong.
func (s *Service) Port() (port int, err error) {
	text, found := "", false
	for _, entry := range s.Env {
		key, value, ok := strings.Cut(entry, "=")
		if key == "" || !ok || strings.ContainsRune(entry, 0) {
			// The entry may be a secret.
			return 0, fmt.Errorf("service %.160q: an entry of its environment is not KEY=VALUE", s.Image)
		}
		if key == portVariable {
			text, found = value, true
		}
	}
	if !found {
		return 0, nil
	}
	if port, err = strconv.Atoi(text); err != nil || port < 1 || port > 65535 {
		return 0, fmt.Errorf("service %.160q: %s is %.40q: want a port", s.Image, portVariable, text)
	}
	return port, nil
}
