package docker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/image"
	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/client"
	"github.com/moby/moby/client/pkg/versions"

	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/internal/flight"
)

// picture is an image that the daemon has.
type picture struct {
	id       string // a digest, of its configuration
	digest   string // of its manifest, as NAME@DIGEST; empty for an image that came from no registry
	platform string // os/arch as Go names them
	user     string
	// entrypoint is the program of the image, with its command as arguments.
	entrypoint []string
	ports      []string // that it exposes, as NUMBER/PROTOCOL
	checked    bool     // it has a health check
}

// findImage returns an image, pulled as the Spec's policy says.
func (c *Container) findImage(ctx context.Context, image string) (picture, error) {
	policy, platform := c.cfg.Spec.Pull, c.cfg.Spec.Platform
	if policy != place.PullAlways {
		found, err := c.inspectImage(ctx, image, image)
		switch {
		case err == nil && (policy == place.PullNever || platform == "" || isOf(platform, found.platform)):
			return found, nil
		case err != nil && !cerrdefs.IsNotFound(err):
			return picture{}, err
		case policy == place.PullNever:
			return picture{}, fmt.Errorf("the Docker daemon does not have image %.160q%s, and --pull never forbids to pull it",
				image, strings.TrimSuffix(" for "+platform, " for "))
		}
	}
	if err := c.pull(ctx, image); err != nil {
		return picture{}, err
	}
	return c.inspectImage(ctx, image, image)
}

// inspectImage returns the image of this name or ID, which has or had the name image.
func (c *Container) inspectImage(ctx context.Context, id, image string) (picture, error) {
	ref, err := place.ParseImage(image)
	if err != nil {
		return picture{}, err
	}
	ctx, cancel := c.api.asking(ctx)
	defer cancel()
	var options []client.ImageInspectOption
	if p := c.cfg.Spec.platform(); p != nil && versions.GreaterThanOrEqualTo(c.api.ClientVersion(), variantsAPI) {
		options = append(options, client.ImageInspectWithPlatform(p))
	}
	told, err := c.api.ImageInspect(ctx, id, options...)
	if err != nil {
		return picture{}, c.api.failure(ctx, fmt.Sprintf("look at image %.160q", image), err)
	}
	p := pictureOf(&told.InspectResponse)
	for _, digest := range told.RepoDigests {
		if of, err := name.NewDigest(digest); err == nil && of.Context() == ref.Context() {
			p.digest = digest
		}
	}
	return p, nil
}

// variantsAPI is the first version of the API that can look at an image of one platform. A daemon with containerd's
// image store may have several of a name, and prefers the one for its own platform.
const variantsAPI = "1.49"

// isOf reports whether an image of that platform is one of the platform want, which may have a variant.
func isOf(want, platform string) bool { return strings.HasPrefix(want+"/", platform+"/") }

// pictureOf returns an image as the daemon describes it, but for its digest.
func pictureOf(told *image.InspectResponse) picture {
	p := picture{id: told.ID, platform: told.Os + "/" + told.Architecture}
	if told.Config != nil {
		p.user, p.entrypoint = told.Config.User, told.Config.Entrypoint
		check := told.Config.Healthcheck
		p.checked = check != nil && len(check.Test) > 0 && check.Test[0] != "NONE" // as HEALTHCHECK NONE says
		p.ports = slices.Sorted(maps.Keys(told.Config.ExposedPorts))
	}
	return p
}

// pullStall is how long a pull may make no progress. A registry may hang, and all builds that want the image wait for
// one pull. A daemon is silent while it unpacks a large layer, and while it downloads three layers of other images.
// Tests change it.
var pullStall = 30 * time.Minute

// pull pulls an image. Builds that want it at the same time share one pull.
func (c *Container) pull(ctx context.Context, image string) error {
	d, key := c.cfg.Daemon, c.cfg.Spec.Platform+" "+image
	return d.share(ctx, &d.pulls, key, func(ctx context.Context) (struct{}, time.Duration, error) {
		err := c.pullNow(ctx, image)
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.pulls, key) // each build may have an image of its own
		return struct{}{}, 0, err
	})
}

func (c *Container) pullNow(ctx context.Context, image string) error {
	op, began := fmt.Sprintf("pull image %.160q", image), time.Now()
	auth, err := c.login(ctx, image)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	c.cfg.Say("pulling image %.160s", image)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	stalled := time.AfterFunc(pullStall, func() {
		stop(fmt.Errorf("the pull made no progress for %v (does its registry answer?)", pullStall))
	})
	defer stalled.Stop()
	options := client.ImagePullOptions{RegistryAuth: auth}
	if p := c.cfg.Spec.platform(); p != nil {
		options.Platforms = append(options.Platforms, *p)
	}
	progress, err := c.api.ImagePull(ctx, image, options)
	if err == nil {
		err = awaitPull(ctx, progress, func() { stalled.Reset(pullStall) })
	}
	switch {
	case err == nil:
		c.cfg.Logger.Info("image pulled", "image", image, "took", time.Since(began))
		return nil
	case cerrdefs.IsUnauthorized(err), cerrdefs.IsPermissionDenied(err), strings.Contains(err.Error(), "no basic auth"):
		err = c.api.failure(ctx, op, err)
		return fmt.Errorf("%w (is there a login for its registry in this user's ~/.docker/config.json?)", err)
	default:
		return c.api.failure(ctx, op, err)
	}
}

// awaitPull waits for the end of a pull. It calls moved at each sign of progress.
func awaitPull(ctx context.Context, progress client.ImagePullResponse, moved func()) error {
	for message, err := range progress.JSONMessages(ctx) {
		moved()
		if err != nil {
			return err
		}
		if message.Error != nil { // it comes after an answer of 200
			return message.Error
		}
	}
	return nil
}

// login returns the credentials for an image. A helper that hangs cannot be ended: it is left to itself, and later
// builds wait for the same one.
func (c *Container) login(ctx context.Context, image string) (string, error) {
	ref, err := place.ParseImage(image)
	if err != nil {
		return "", err
	}
	at, limit := ref.Context().Registry, c.api.patience
	d, key := c.cfg.Daemon, at.RegistryStr()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the credential helper of the Docker configuration "+
		"for %.160s did not answer within %v", key, limit))
	defer cancel()
	d.mu.Lock()
	if d.logins == nil {
		d.logins = map[string]*flight.Flight[string]{}
	}
	f := d.logins[key]
	if f == nil {
		f = &flight.Flight[string]{GoOn: true}
		d.logins[key] = f
	}
	d.mu.Unlock()
	return f.Do(ctx, func(ctx context.Context) (string, time.Duration, error) {
		auth, err := credentials(ctx, at)
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.logins, key) // each build may have a registry of its own
		return auth, 0, err
	})
}

// credentials returns the login for a registry in the configuration of the Docker client on this machine, in the form
// of the header; or empty. A credential helper may be run for it.
func credentials(ctx context.Context, at name.Registry) (string, error) {
	login, err := authn.Resolve(ctx, authn.DefaultKeychain, at)
	if err != nil {
		return "", fmt.Errorf("look for a login in the Docker configuration: %w", err)
	}
	if login == authn.Anonymous {
		return "", nil
	}
	found, err := authn.Authorization(ctx, login)
	if err != nil {
		return "", fmt.Errorf("look for a login in the Docker configuration: %w", err)
	}
	header, err := authconfig.Encode(registry.AuthConfig{
		Username: found.Username, Password: found.Password, Auth: found.Auth, IdentityToken: found.IdentityToken,
		RegistryToken: found.RegistryToken, ServerAddress: at.RegistryStr(),
	})
	if err != nil {
		return "", errors.New("the login of the Docker configuration cannot be encoded") // without the login
	}
	return header, nil
}
