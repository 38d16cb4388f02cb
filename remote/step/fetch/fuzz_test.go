package fetch

import (
	"archive/tar"
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
)

// FuzzListing parses listings of git: the result is within the limits.
func FuzzListing(f *testing.F) {
	f.Add("100644 blob 0123 5\ta\x00120000 blob 0123 1\tl\x00160000 commit 0123 -\tm\x00")
	f.Add("100644 blob 0123 99999999999999999999\ta\x00")
	f.Add("40000 tree 0123 -\tx\x00\x00")
	f.Fuzz(func(t *testing.T, listing string) {
		l := limits{entries: 20, file: 1 << 20, total: 2 << 20, parts: maxParts}
		objects, err := parseTree(listing, l)
		if err != nil {
			require.Less(t, len(err.Error()), 2000)
			return
		}
		require.LessOrEqual(t, len(objects), l.entries)
		var total int64
		for _, o := range objects {
			require.Contains(t, []string{modeFile, modeExecutable, modeSymlink, modeGitlink}, o.mode)
			require.NotContains(t, o.path, "\x00")
			require.GreaterOrEqual(t, o.size, int64(0))
			require.LessOrEqual(t, o.size, l.file)
			total += o.size
		}
		require.LessOrEqual(t, total, l.total)
	})
}

// saying is a registry with the same answer for all manifests, and the same for all blobs.
type saying struct {
	manifest, blob []byte
	kind           string
}

func (s saying) RoundTrip(r *http.Request) (*http.Response, error) {
	body := s.blob
	if strings.Contains(r.URL.Path, "/manifests/") {
		body = s.manifest
	}
	return &http.Response{
		StatusCode: http.StatusOK, Status: "200 OK", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header:        http.Header{"Content-Type": {s.kind}},
		ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)),
	}, nil
}

// FuzzManifest reads answers of a registry about an image: the result is an image or a printable error.
func FuzzManifest(f *testing.F) {
	const digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	f.Add([]byte(`{"schemaVersion":2,"config":{"digest":"`+digest+`","size":0},`+
		`"layers":[{"digest":"`+digest+`","size":-1}]}`), []byte(`{"os":"plan9"}`), string(types.OCIManifestSchema1))
	f.Add([]byte(`{"schemaVersion":2,"manifests":[{"digest":"`+digest+`","platform":{"os":"\u001b[2J"},`+
		`"mediaType":"application/vnd.oci.image.manifest.v1+json"}]}`), []byte(""), string(types.OCIImageIndex))
	f.Add([]byte(`{"layers":[{"digest":"../../etc"}]}`), []byte("{}"), string(types.DockerManifestSchema1))
	f.Fuzz(func(t *testing.T, manifest, blob []byte, kind string) {
		ref, err := name.ParseReference("registry.test/a/b:c", name.StrictValidation)
		require.NoError(t, err)
		from := &fetcher{Store: &Store{client: &http.Client{Transport: saying{manifest, blob, kind}}}}
		d, err := remote.Get(ref, from.options(t.Context(), nil, nil)...)
		if err != nil {
			err = refusalOf(err, false)
		} else {
			var img v1.Image
			if img, err = pick(d); err == nil {
				_, _ = img.Layers()
				return
			}
		}
		require.Less(t, len(err.Error()), 500)
		require.NotContains(t, err.Error(), "\x1b")
	})
}

// FuzzLayers writes the layers of an image, and looks for files outside of the tree.
func FuzzLayers(f *testing.F) {
	archive := func(headers ...tar.Header) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range headers {
			h.Mode = 0o755
			h.Size = 0
			_ = w.WriteHeader(&h)
		}
		_ = w.Close()
		return b.Bytes()
	}
	f.Add(archive(tar.Header{Name: "a/b", Typeflag: tar.TypeReg}),
		archive(tar.Header{Name: "a/.wh.b", Typeflag: tar.TypeReg}))
	f.Add(archive(tar.Header{Name: "../../evil", Typeflag: tar.TypeReg}),
		archive(tar.Header{Name: "/abs", Typeflag: tar.TypeReg}))
	f.Add(archive(tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../.."}),
		archive(tar.Header{Name: "l/x", Typeflag: tar.TypeReg}))
	f.Add(archive(tar.Header{Name: "d", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}),
		archive(tar.Header{Name: "a/.wh..wh..opq", Typeflag: tar.TypeReg}))
	f.Fuzz(func(t *testing.T, upper, lower []byte) {
		dir := fetchtest.CacheDir(t)
		inner := filepath.Join(dir, "in")
		require.NoError(t, os.Mkdir(inner, 0o700))
		w, err := newTreeWriter(filepath.Join(inner, treeName),
			limits{entries: 100, file: 1 << 20, total: 1 << 20, ratio: 200, parts: maxParts})
		require.NoError(t, err)
		defer w.close()
		flat := &flattener{w: w, above: map[string]cover{}}
		for _, layer := range [][]byte{upper, lower} {
			if err = flat.layer(tar.NewReader(bytes.NewReader(layer))); err != nil {
				break
			}
		}
		var nodes []node
		if err == nil {
			nodes, err = w.finish(t.Context())
		}
		for _, d := range []string{dir, inner} {
			entries, readErr := os.ReadDir(d)
			require.NoError(t, readErr)
			require.Len(t, entries, 1)
		}
		if err != nil {
			return
		}
		for _, n := range nodes {
			require.NoError(t, checkNode(n, w.root), n.Path)
			require.False(t, strings.HasPrefix(filepath.Base(n.Path), whiteout), n.Path)
		}
	})
}
