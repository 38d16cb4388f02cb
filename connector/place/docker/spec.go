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
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/moby/moby/api/types/container"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/stepmux/stepmux/connector/place"
)

// Pull is the policy for pulling an image.
type Pull string

// The policies.
const (
	PullIfNotPresent Pull = "if-not-present"
	PullAlways       Pull = "always"
	PullNever        Pull = "never"
)

var pulls = []Pull{PullIfNotPresent, PullAlways, PullNever}

// Spec describes the container of a build. Only Image or Container is required.
type Spec struct {
	// Container is the name or ID of a container that runs already, in place of Image: the build is one more process in
	// it, and leaves it as it was but for the step runner's program. Of the other fields only User may be set then.
	Container string
	// Image is the image's name, as for `docker run`.
	Image string
	// Pull says when the image is pulled. If empty, PullIfNotPresent.
	Pull Pull
	// Platform is the one of the image to use, as OS/ARCH or OS/ARCH/VARIANT. If empty, the daemon's. The daemon's machine
	// must run its programs.
	Platform string
	// KeepEntrypoint runs the image's entrypoint. It gets the command of the step runner as its arguments, and must become
	// that.
	KeepEntrypoint bool
	// Entrypoint is run as with KeepEntrypoint, in place of the image's. If empty and without KeepEntrypoint, the step
	// runner is the first process.
	Entrypoint []string
	// Labels are set on the containers, volumes and networks of the build, as KEY=VALUE.
	Labels []string
	// User runs the steps: a name or number, and maybe a group after a colon. If empty, the image says.
	User string
	// Memory is the limit in bytes, without swap. If zero, there is no limit.
	Memory int64
	// NanoCPUs is the limit of processor time in billionths of a processor. If zero, there is no limit.
	NanoCPUs int64
	// Pids is how many processes the container may have. If zero, the daemon's default.
	Pids int64
	// ReadOnly makes the container's root read-only. Builds then work in memory.
	ReadOnly bool
	// Tmpfs are file systems in memory: a path, and maybe options after a colon.
	Tmpfs []string
	// Volumes are SOURCE:PATH[:OPTIONS] as for `docker run`. SOURCE is a directory of the daemon's machine, or the name of
	// a volume.
	Volumes []string
	// Network is the network's name: "none", "host", or one that the daemon has. If empty, the daemon's default.
	Network string
	// Hosts are more names of /etc/hosts, as NAME:IP.
	Hosts []string
	// Services are containers beside the build's, on a network of its own. The build begins when all are ready.
	Services []Service
	// ServiceTimeout bounds their start, without the pulls. If zero, 1m.
	ServiceTimeout time.Duration
}

// Check returns an error for a Spec that no daemon would accept, or that would give a build more rights than
// intended.
func (s *Spec) Check() error {
	if s.Container != "" {
		only := Spec{Container: s.Container, User: s.User}
		if !reflect.DeepEqual(*s, only) {
			return errors.New("a container that is there already takes only a user: it has its image, limits and network")
		}
		return checkText(s.Container, s.User)
	}
	if _, err := parseImage(s.Image); err != nil {
		return err
	}
	if s.Platform != "" && !platformPattern.MatchString(s.Platform) {
		return fmt.Errorf("platform %.80q: want OS/ARCH, such as linux/arm64", s.Platform)
	}
	for _, text := range s.Labels {
		if key, _, _ := strings.Cut(text, "="); key == "" || strings.HasPrefix(key, labelPrefix) {
			return fmt.Errorf("label %.160q: want KEY=VALUE, and no key of stepmux itself (%s)", text, labelPrefix)
		}
	}
	if err := s.checkServices(); err != nil {
		return err
	}
	if s.Pull != "" && !slices.Contains(pulls, s.Pull) {
		return fmt.Errorf("pull policy %.80q: use %s, %s or %s", s.Pull, PullIfNotPresent, PullAlways, PullNever)
	}
	if min(s.Memory, s.NanoCPUs, s.Pids) < 0 {
		return errors.New("a limit of the container is negative")
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

// parseImage parses an image's name.
func parseImage(image string) (name.Reference, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return nil, fmt.Errorf("image name %.160q: use NAME, NAME:TAG or NAME@DIGEST, maybe with a registry before it", image)
	}
	return ref, nil
}

// isRoot reports whether a User of an image or a Spec is root.
func isRoot(user string) bool {
	user, _, _ = strings.Cut(user, ":")
	return user == "" || user == "0" || user == "root"
}
