package place

import (
	"fmt"
	"path"
	"strconv"
	"strings"
)

// Service is a container beside the build's, such as a database. It is ready when it runs, its health check (of a
// container) or its readiness probe (of a pod's template) succeeds, and it accepts connections at the TCP port in
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
