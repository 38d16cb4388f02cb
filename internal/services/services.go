// Package services has the rules for the services of a build that Docker and Kubernetes share: [Alias] and [Port].
package services

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
)

// portVariable of a service's environment names the TCP port at which it accepts connections when it is ready. An image
// may expose others, at which it does not listen unless it is configured to.
const portVariable = "HEALTHCHECK_TCP_PORT"

// Alias returns a service's host name: the alias or, if that is empty, the last part of the image's name. It is empty
// if the image's name is invalid.
func Alias(alias, image string) string {
	if alias != "" {
		return alias
	}
	ref, err := name.ParseReference(image)
	if err != nil {
		return ""
	}
	return path.Base(ref.Context().RepositoryStr())
}

// Port returns the TCP port that the environment of the service with this image names, or 0 if it names none. Of
// several entries with one key the last counts, as in the container. The error says that an entry is not KEY=VALUE, or
// that the port is none.
func Port(image string, env []string) (port int, err error) {
	text, found := "", false
	for _, entry := range env {
		key, value, ok := strings.Cut(entry, "=")
		if key == "" || !ok || strings.ContainsRune(entry, 0) {
			return 0, fmt.Errorf("service %.160q: an entry of its environment is not KEY=VALUE", image) // may be a secret
		}
		if key == portVariable {
			text, found = value, true
		}
	}
	if !found {
		return 0, nil
	}
	if port, err = strconv.Atoi(text); err != nil || port < 1 || port > 65535 {
		return 0, fmt.Errorf("service %.160q: %s is %.40q: want a port", image, portVariable, text)
	}
	return port, nil
}
