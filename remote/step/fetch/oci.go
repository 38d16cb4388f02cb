package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/stepmux/stepmux/internal/termtext"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// oci returns the step of an image that ref names.
func (f *fetcher) oci(ctx context.Context, ref *pb.Reference) (*Component, error) {
	if _, err := parseDigest(ref.GetDigest()); err != nil {
		return nil, err
	}
	where, err := name.NewRepository(ref.GetRegistry()+"/"+ref.GetRepository(), name.StrictValidation)
	if err != nil {
		return nil, errors.New("the name of the image is invalid; write registry/repository:tag")
	}
	// Each platform has a component of its own.
	key := func(digest string) string {
		return keyOf(kindOCI, where.String(), digest, runtime.GOOS, runtime.GOARCH)
	}
	// The library calls docker.io index.docker.io.
	login := cmp.Or(f.with.At(where.RegistryStr()), f.with.At(ref.GetRegistry()))
	digest, private := ref.GetDigest(), false
	var image name.Reference = where.Digest(digest)
	if digest == "" {
		if image, err = name.NewTag(where.String() + ":" + ref.GetTag()); err != nil {
			return nil, errors.New("the tag of the image is invalid")
		}
	}
	if e, found := f.find(key(digest)); digest == "" || !found || e.Private {
		if digest, private, err = f.manifestDigest(ctx, image, login); err != nil {
			return nil, err
		}
	}
	return f.obtain(ctx, key(digest), private, func(w *treeWriter, tmp *scratch) (Source, error) {
		source := Source{Kind: kindOCI, Location: where.String(), Digest: digest}
		return source, f.pull(ctx, where.Digest(digest), login, private, w, tmp)
	})
}

// options returns the options of a request, with login if that is not nil. If there is a login that the request does
// not have, it is not repeated after too many requests.
func (f *fetcher) options(ctx context.Context, login, known *Login) []remote.Option {
	auth := authn.Anonymous
	if login != nil {
		auth = authn.FromConfig(authn.AuthConfig{Username: login.User, Password: login.Password})
	}
	again := []int{http.StatusBadGateway, http.StatusServiceUnavailable}
	if login == known {
		again = append(again, http.StatusTooManyRequests)
	}
	return []remote.Option{
		remote.WithContext(ctx), remote.WithAuth(auth), remote.WithTransport(f.client.Transport),
		remote.WithRetryStatusCodes(again...),
	}
}

// manifestDigest asks the registry for the digest of an image's manifest. It also reports whether the registry asked
// for credentials.
func (f *fetcher) manifestDigest(ctx context.Context, image name.Reference, login *Login) (string, bool, error) {
	known := login
	return anonymousFirst(login, func(login *Login) (string, error) {
		d, err := remote.Head(image, f.options(ctx, login, known)...)
		if err != nil {
			return "", refusalOf(err, login != nil)
		}
		return d.Digest.String(), nil
	})
}

// refusalOf returns an *AccessError if the registry refused the request, and otherwise err without secrets.
func refusalOf(err error, presented bool) error {
	failed, ok := errors.AsType[*transport.Error](err)
	if !ok {
		return cut(err)
	}
	switch failed.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound:
		return &AccessError{Status: failed.StatusCode, Presented: presented}
	case http.StatusTooManyRequests:
		return errTooMany
	}
	return ofStatus(failed.StatusCode,
		fmt.Errorf("the registry answers %d %s", failed.StatusCode, http.StatusText(failed.StatusCode)))
}

// pull writes the files of an image for this platform to w.
func (f *fetcher) pull(
	ctx context.Context, image name.Reference, login *Login, private bool, w *treeWriter, tmp *scratch,
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	known := login
	get := func(login *Login) (*remote.Descriptor, error) {
		d, err := remote.Get(image, f.options(ctx, login, known)...)
		if err != nil {
			return nil, refusalOf(err, login != nil)
		}
		return d, nil
	}
	var d *remote.Descriptor
	var err error
	if private {
		d, err = get(login)
	} else {
		d, _, err = anonymousFirst(login, get)
	}
	if err != nil {
		return err
	}
	picked, err := pick(d)
	if err != nil {
		return err
	}
	layers, err := saveLayers(ctx, cancel, picked, w.limits, tmp)
	if err != nil {
		return err
	}
	return writeLayers(ctx, layers, w)
}

func registryError(err error) error {
	err = cut(err)
	if failed, ok := errors.AsType[*transport.Error](err); ok {
		err = ofStatus(failed.StatusCode, err)
	}
	return fmt.Errorf("read the image: %w", err)
}

// pick returns the image for this platform: the image that d describes, or one of its index.
func pick(d *remote.Descriptor) (v1.Image, error) {
	want := v1.Platform{OS: runtime.GOOS, Architecture: runtime.GOARCH}
	if !d.MediaType.IsIndex() {
		img, err := d.Image()
		if err != nil {
			return nil, registryError(err)
		}
		m, err := img.Manifest()
		if err != nil {
			return nil, registryError(err)
		}
		if m.Config.Size < 0 || m.Config.Size > maxConfig {
			return nil, fmt.Errorf("the configuration of the image has the size %d, the limit is %d bytes", m.Config.Size,
				maxConfig)
		}
		config, err := img.ConfigFile()
		if err != nil {
			return nil, registryError(err)
		}
		if config.OS != "" && config.OS != want.OS || config.Architecture != "" && config.Architecture != want.Architecture {
			return nil, fmt.Errorf("the image is for the platform %s, and this machine is %s",
				termtext.Short(config.OS+"/"+config.Architecture, 100), want)
		}
		return img, nil
	}
	index, err := d.ImageIndex()
	if err != nil {
		return nil, registryError(err)
	}
	list, err := index.IndexManifest()
	if err != nil {
		return nil, registryError(err)
	}
	var others []string
	for _, m := range list.Manifests {
		switch {
		case m.Platform == nil || !m.MediaType.IsImage():
		case m.Platform.OS == want.OS && m.Platform.Architecture == want.Architecture:
			img, err := index.Image(m.Digest)
			if err != nil {
				return nil, registryError(err)
			}
			return img, nil
		default:
			others = append(others, m.Platform.String())
		}
	}
	return nil, fmt.Errorf("the image has no version for the platform of this machine, %s; it has %s", want,
		termtext.Short(strings.Join(others, ", "), 200))
}
