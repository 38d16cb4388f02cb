package place

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// Pull is the policy for pulling an image, by its name in a .gitlab-ci.yml.
type Pull string

// The policies.
const (
	PullIfNotPresent Pull = "if-not-present"
	PullAlways       Pull = "always"
	PullNever        Pull = "never"
)

var pulls = []Pull{PullIfNotPresent, PullAlways, PullNever}

// Spec is the part of a description that containers and pods have in common. Only Image is required.
type Spec struct {
	// Image is the name of the image in which the steps run, as for `docker run`. The image does not need stepmux.
	Image string
	// Pull says when the image is pulled. If empty, a container's is PullIfNotPresent, and that of a pod the cluster's
	// default for the image's name.
	Pull Pull
	// Platform is the one of the image to use, as OS/ARCH or OS/ARCH/VARIANT. If empty, that of the machine, which must
	// run its programs. A pod has none: the node selector of its template says.
	Platform string
	// Entrypoint is a program that gets the command line of the first process as its arguments, and must execute it. If
	// empty, nothing of the image is run.
	Entrypoint []string
	// User runs the steps: a name or number, optionally followed by a colon and a group; in a pod, numbers. If empty, the
	// image's.
	User string
	// Memory is the limit in bytes, without swap, NanoCPUs the limit of processor time in billionths of a processor. In a
	// pod both are also its requests. If zero, there is no limit, and in a pod that of the template and the namespace.
	Memory, NanoCPUs int64
	// Pids is how many processes there may be. If zero, the daemon's default. A pod takes none: the kubelet has a limit.
	Pids int64
	// ReadOnly makes the root of the build's container read-only. Builds then work in memory.
	ReadOnly bool
	// Labels are set on all objects of the build, as KEY=VALUE.
	Labels []string
	// Services are containers beside the build's. The build begins when all are ready.
	Services []Service
	// ServiceTimeout bounds their start, without the pulls. If zero, 1m.
	ServiceTimeout time.Duration
}

// Description describes the place of a build: a *docker.Spec or a *kubernetes.Spec.
type Description interface {
	// Check returns an error for a description from which no place can be made, or which would give a build more rights
	// than intended.
	Check() error
	// Common returns the part that all kinds have.
	Common() *Spec
}

// Common implements Description, for the types that embed a Spec.
func (s *Spec) Common() *Spec { return s }

// Limit sets the limits that are not set.
func (s *Spec) Limit(l vmconfig.Limits) {
	s.Memory, s.Pids = cmp.Or(s.Memory, l.Memory), cmp.Or(s.Pids, l.PIDs)
	s.NanoCPUs = cmp.Or(s.NanoCPUs, int64(math.Round(l.CPUs*1e9)))
}

// LabelPrefix begins the keys of the labels that stepmux itself sets.
const LabelPrefix = "dev.stepmux."

// DefaultServiceTimeout is the ServiceTimeout of a Spec without one.
const DefaultServiceTimeout = time.Minute

const maxServices = 50

// Names are the rules of one kind of place for the names of services.
type Names struct {
	// Alias matches the host names, and Rule says in an error how they are.
	Alias *regexp.Regexp
	Rule  string
	// Of returns the name of the container of a service with this alias. No two may have the same, nor one in Taken.
	Of    func(alias string) string
	Taken []string
}

// CheckSpec returns an error for a Spec that no place of this kind can have.
func CheckSpec(s *Spec, names Names) error {
	if _, err := ParseImage(s.Image); err != nil {
		return err
	}
	if s.Pull != "" && !slices.Contains(pulls, s.Pull) {
		return fmt.Errorf("pull policy %.80q: use %s, %s or %s", s.Pull, PullIfNotPresent, PullAlways, PullNever)
	}
	if min(s.Memory, s.NanoCPUs, s.Pids) < 0 || s.ServiceTimeout < 0 {
		return errors.New("a limit of the container is negative")
	}
	for _, text := range s.Labels {
		if key, _, _ := strings.Cut(text, "="); key == "" || strings.HasPrefix(key, LabelPrefix) {
			return fmt.Errorf("label %.160q: want KEY=VALUE, and no key of stepmux itself (%s)", text, LabelPrefix)
		}
	}
	if len(s.Services) > maxServices {
		return fmt.Errorf("%d services: a build may have %d", len(s.Services), maxServices)
	}
	seen := slices.Clone(names.Taken)
	for i := range s.Services {
		one := &s.Services[i]
		if _, err := ParseImage(one.Image); err != nil {
			return fmt.Errorf("service: %w", err)
		}
		alias := one.Host()
		if !names.Alias.MatchString(alias) {
			return fmt.Errorf("service %.160q: the alias %.80q is %s", one.Image, alias, names.Rule)
		}
		own := names.Of(alias)
		if slices.Contains(seen, own) {
			return fmt.Errorf("service %.160q: another container has the name %.80q, too; give it an alias of its own",
				one.Image, own)
		}
		seen = append(seen, own)
		if _, err := one.Port(); err != nil {
			return err
		}
		if err := one.Health.check(); err != nil {
			return fmt.Errorf("service %.160q: %w", one.Image, err)
		}
	}
	return nil
}

// ParseImage parses an image's name.
func ParseImage(image string) (name.Reference, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return nil, fmt.Errorf("image name %.160q: use NAME, NAME:TAG or NAME@DIGEST, maybe with a registry before it", image)
	}
	return ref, nil
}
