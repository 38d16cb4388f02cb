package docker

import (
	"errors"
	"fmt"
	"net"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/stepmux/stepmux/connector/place"
)

// Spec describes the container of a build. Only Image or Container is required.
type Spec struct {
	place.Spec
	// Container is the name or ID of a container that runs already, in place of Image: the build is one more process in
	// it, and leaves it as it was but for the step runner's program. Of the other fields only User may be set then.
	Container string
	// KeepEntrypoint runs the image's entrypoint, as Entrypoint is run.
	KeepEntrypoint bool
	// Tmpfs are file systems in memory: a path, and maybe options after a colon.
	Tmpfs []string
	// Volumes are SOURCE:PATH[:OPTIONS] as for `docker run`. SOURCE is a directory of the daemon's machine, or the name of
	// a volume.
	Volumes []string
	// Network is the network's name: "none", "host", or one that the daemon has. If empty, the daemon's default.
	Network string
	// Hosts are more names of /etc/hosts, as NAME:IP.
	Hosts []string
}

// Check returns an error for a Spec that no daemon would accept, or that would give a build more rights than
// intended.
func (s *Spec) Check() error {
	if s.Container != "" {
		only := Spec{Spec: place.Spec{User: s.User}, Container: s.Container}
		if !reflect.DeepEqual(*s, only) {
			return errors.New("a container that is there already takes only a user: it has its image, limits and network")
		}
		return checkText(s.Container, s.User)
	}
	if err := place.CheckSpec(&s.Spec, names); err != nil {
		return err
	}
	if s.Platform != "" && !platformPattern.MatchString(s.Platform) {
		return fmt.Errorf("platform %.80q: want OS/ARCH, such as linux/arm64", s.Platform)
	}
	if len(s.Services) > 0 && s.Network != "" {
		return fmt.Errorf("network %.80q: a build with services has a network of its own", s.Network)
	}
	err := checkText(slices.Concat([]string{s.User, s.Network}, s.Tmpfs, s.Volumes, s.Hosts, s.Labels)...)
	if err != nil {
		return err
	}
	for _, text := range s.Tmpfs {
		at, _, _ := strings.Cut(text, ":")
		if err := checkMountPoint(at); err != nil {
			return fmt.Errorf("tmpfs %.160q: %w", text, err)
		}
	}
	for _, text := range s.Volumes {
		from, rest, ok := strings.Cut(text, ":")
		at, _, _ := strings.Cut(rest, ":")
		switch {
		case !ok || from == "":
			return fmt.Errorf("volume %.160q: want SOURCE:PATH or SOURCE:PATH:OPTIONS", text)
		case path.IsAbs(from) && path.Clean(from) == "/":
			return fmt.Errorf("volume %.160q: it would give the build all files of the machine; name a directory", text)
		}
		if err := checkMountPoint(at); err != nil {
			return fmt.Errorf("volume %.160q: %w", text, err)
		}
	}
	for _, text := range s.Hosts {
		host, ip, _ := strings.Cut(text, ":")
		if host == "" || net.ParseIP(ip) == nil && ip != "host-gateway" {
			return fmt.Errorf("host %.160q: want NAME:IP", text)
		}
	}
	return nil
}

// names are the rules for the names of services.
var names = place.Names{
	Alias: regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`), Rule: "no host name",
	Of: func(alias string) string { return alias },
}

// checkText returns an error for an option with a control character.
func checkText(options ...string) error {
	for _, text := range options {
		if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return fmt.Errorf("container option %.160q has a control character in it", text)
		}
	}
	return nil
}

// platformPattern matches a platform as Docker writes it.
var platformPattern = regexp.MustCompile(`^linux/[a-z0-9]+(/[a-z0-9]+)?$`)

// platform returns the Platform for the API, nil for the daemon's own.
func (s *Spec) platform() *ocispec.Platform {
	if s.Platform == "" {
		return nil
	}
	parts := append(strings.Split(s.Platform, "/"), "")
	return &ocispec.Platform{OS: parts[0], Architecture: parts[1], Variant: parts[2]}
}

// resources returns the limits of the build's container, and of each of its services.
func (s *Spec) resources() container.Resources {
	of := container.Resources{Memory: s.Memory, MemorySwap: s.Memory, NanoCPUs: s.NanoCPUs}
	if s.Pids > 0 {
		of.PidsLimit = &s.Pids
	}
	return of
}

// checkMountPoint returns an error for a path at which nothing of the build's may be mounted.
func checkMountPoint(at string) error {
	switch clean := path.Clean(at); {
	case !path.IsAbs(at):
		return errors.New("the path in the container is not absolute")
	case clean == "/":
		return errors.New("the root of the container cannot be replaced")
	case clean == place.Home || strings.HasPrefix(clean, place.Home+"/"):
		return errors.New("the step runner is there; use another path")
	}
	return nil
}

// isRoot reports whether a User of an image or a Spec is root.
func isRoot(user string) bool {
	user, _, _ = strings.Cut(user, ":")
	return user == "" || user == "0" || user == "root"
}
