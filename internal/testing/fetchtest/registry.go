package fetchtest

import (
	"archive/tar"
	"bytes"
	"io"
	"log"
	"maps"
	"net/http/httptest"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/require"
)

// Registry is a registry of images, in memory.
type Registry struct {
	*httptest.Server
	// Host is its host and port.
	Host string
	t    TB
}

// ServeRegistry serves an empty registry until the test ends.
func ServeRegistry(t TB) *Registry {
	t.Helper()
	r := &Registry{Server: httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0)))), t: t}
	r.Host = strings.TrimPrefix(r.URL, "http://")
	t.Cleanup(r.Close)
	return r
}

// Push stores an image of files, for any platform, under ref (group/name:tag). It returns the digest of its manifest.
func (r *Registry) Push(ref string, files Files) string {
	r.t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layerOf(r.t, files))
	require.NoError(r.t, err)
	to, err := name.ParseReference(r.Host + "/" + ref)
	require.NoError(r.t, err)
	require.NoError(r.t, remote.Write(to, img, remote.WithContext(r.t.Context())))
	digest, err := img.Digest()
	require.NoError(r.t, err)
	return digest.String()
}

// layerOf returns a layer with files.
func layerOf(t TB, files Files) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, path := range slices.Sorted(maps.Keys(files)) {
		f := files[path]
		h := &tar.Header{Name: path, Mode: 0o644, Size: int64(len(f.Content))}
		if f.Executable {
			h.Mode = 0o755
		}
		if f.Symlink != "" {
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, f.Symlink, 0
		}
		require.NoError(t, w.WriteHeader(h))
		if h.Size > 0 {
			_, err := io.WriteString(w, f.Content)
			require.NoError(t, err)
		}
	}
	require.NoError(t, w.Close())
	l, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil },
	)
	require.NoError(t, err)
	return l
}
