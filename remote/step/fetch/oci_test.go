package fetch

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
)

// ociHost is a registry in memory.
type ociHost struct {
	*httptest.Server
	host     string
	password atomic.Value
	lie      atomic.Bool // about the content of blobs
	busy     atomic.Bool // for those who are not logged in
	blobs    atomic.Int64
}

func newOCIHost(t testing.TB) *ociHost {
	t.Helper()
	h := &ociHost{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		if want, _ := h.password.Load().(string); want != "" && password != want {
			w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if h.busy.Load() && r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/manifests/") && password != secret {
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			h.blobs.Add(1)
			if h.lie.Load() {
				answer := httptest.NewRecorder()
				inner.ServeHTTP(answer, r)
				body := answer.Body.Bytes()
				body[len(body)-1] ^= 0xff
				_, _ = w.Write(body)
				return
			}
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(h.Close)
	h.host = strings.TrimPrefix(h.URL, "http://")
	return h
}

// layer is a layer with entries; a directory's name ends in /.
func layer(t testing.TB, entries ...tar.Header) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		text := h.Uname // the content of a file, as the header has no other place for it
		h.Uname, h.Size = "", int64(len(text))
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		require.NoError(t, w.WriteHeader(&h))
		_, err := io.WriteString(w, text)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b.Bytes())),
			nil
	})
	require.NoError(t, err)
	return l
}

func (h *ociHost) push(t testing.TB, ref string, layers ...v1.Layer) string {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	require.NoError(t, err)
	to, err := name.ParseReference(h.host + "/" + ref)
	require.NoError(t, err)
	require.NoError(t, remote.Write(to, img, remote.WithContext(t.Context())))
	digest, err := img.Digest()
	require.NoError(t, err)
	return digest.String()
}

func TestImageIsFetchedByTagAndByDigest(t *testing.T) {
	h := newOCIHost(t)
	first := h.push(t, "g/echo:1",
		layer(t, tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755}, tar.Header{Name: "d/gone", Uname: "x"},
			tar.Header{Name: "./func.yml", Uname: "old"}),
		layer(t, tar.Header{Name: "func.yml", Uname: "one"}, tar.Header{Name: "d/.wh.gone"},
			tar.Header{Name: "d/run", Uname: "#!", Mode: 0o4755},
			tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "d/run"}))
	s := newStore(t)
	c := get(t, s, h.host+"/g/echo:1")
	require.Equal(t, "one", read(t, c, "func.yml"))
	require.Equal(t, "#!", read(t, c, "l"))
	require.NoFileExists(t, c.Root+"/d/gone")
	require.Equal(t, first, c.Digest)
	require.Equal(t, h.host+"/g/echo", c.Location)
	require.Equal(t, "1", c.Version)
	pinned := h.host + "/g/echo@" + first
	require.Equal(t, first, get(t, s, pinned).Version)

	h.push(t, "g/echo:1", layer(t, tar.Header{Name: "func.yml", Uname: "two"}))
	require.Equal(t, "two", read(t, get(t, s, h.host+"/g/echo:1"), "func.yml"), "a tag is asked for again")
	blobs := h.blobs.Load()
	get(t, s, h.host+"/g/echo:1 d/x.yml")
	require.Equal(t, blobs, h.blobs.Load())
	h.Close()
	c = get(t, s, pinned+" d/func.yml")
	require.Equal(t, "one", read(t, c, "func.yml"), "a digest is not")
	require.Equal(t, c.Root+"/d", c.Dir)
	require.Contains(t, refused(t, s, h.host+"/g/echo:1"), "connection refused")
}

func TestImageForOtherMachinesIsRefused(t *testing.T) {
	h := newOCIHost(t)
	s := newStore(t)
	other := &v1.Platform{OS: "plan9", Architecture: "mips"}
	img, err := mutate.AppendLayers(empty.Image, layer(t, tar.Header{Name: "func.yml", Uname: "x"}))
	require.NoError(t, err)
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: other}})
	to, err := name.ParseReference(h.host + "/g/echo:index")
	require.NoError(t, err)
	require.NoError(t, remote.WriteIndex(to, index))
	require.Contains(t, refused(t, s, h.host+"/g/echo:index"),
		"the platform of this machine, "+runtime.GOOS+"/"+runtime.GOARCH+"; it has plan9/mips")

	config, err := img.ConfigFile()
	require.NoError(t, err)
	config.OS = "plan9"
	img, err = mutate.ConfigFile(img, config)
	require.NoError(t, err)
	to, err = name.ParseReference(h.host + "/g/echo:alone")
	require.NoError(t, err)
	require.NoError(t, remote.Write(to, img))
	require.Contains(t, refused(t, s, h.host+"/g/echo:alone"), "for the platform plan9")
}

func TestUpperLayersHideLowerOnes(t *testing.T) {
	h := newOCIHost(t)
	dir := func(name string) tar.Header { return tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: 0o755} }
	h.push(t, "g/echo:1",
		layer(t, dir("a"), tar.Header{Name: "a/low", Uname: "1"}, dir("b"), tar.Header{Name: "b/low", Uname: "1"},
			tar.Header{Name: "c", Uname: "1"},
			dir("d"), tar.Header{Name: "d/low", Uname: "1"}, dir("e"), tar.Header{Name: "e/low", Uname: "1"},
			tar.Header{Name: "f", Uname: "1"}),
		layer(t, dir("a"), tar.Header{Name: "a/.wh..wh..opq"}, tar.Header{Name: "a/own", Uname: "2"},
			tar.Header{Name: ".wh.b"}, dir("c"),
			tar.Header{Name: "c/x", Uname: "2"}, tar.Header{Name: "d", Uname: "2"}, dir("e"),
			tar.Header{Name: "e/own", Uname: "2"}),
		layer(t, tar.Header{Name: ".wh.f"}),
		layer(t, tar.Header{Name: "f", Uname: "4"}))
	c := get(t, newStore(t), h.host+"/g/echo:1")
	for name, want := range map[string]string{"a/own": "2", "c/x": "2", "d": "2", "e/low": "1", "e/own": "2", "f": "4"} {
		require.Equal(t, want, read(t, c, name))
	}
	for _, name := range []string{"a/low", "b", "d/low"} {
		require.NoFileExists(t, c.Root+"/"+name)
		require.NoDirExists(t, c.Root+"/"+name)
	}
}

func TestWhiteoutBesideADirectoryOfItsNameHidesTheLowerOne(t *testing.T) {
	h := newOCIHost(t)
	dir, gone := tar.Header{Name: "a/", Typeflag: tar.TypeDir, Mode: 0o755}, tar.Header{Name: ".wh.a"}
	own, other := tar.Header{Name: "a/own", Uname: "2"}, tar.Header{Name: "b", Uname: "1"}
	lower := layer(t, dir, tar.Header{Name: "a/low", Uname: "1"}, other)
	for i, upper := range [][]tar.Header{{gone, dir, own}, {dir, gone, own}, {dir, own, gone}, {gone, own}} {
		image := fmt.Sprintf("g/echo:%d", i)
		h.push(t, image, lower, layer(t, upper...), layer(t, dir))
		c := get(t, newStore(t), h.host+"/"+image)
		require.Equal(t, "2", read(t, c, "a/own"))
		require.Equal(t, "1", read(t, c, "b"))
		require.NoFileExists(t, c.Root+"/a/low", image)
	}
}

// Symptom: a layer that is the output of git archive was refused, because of a device, pipe or socket in it.
func TestCommentOfALayerIsNoFile(t *testing.T) {
	repo := newGitHost(t).repository("g/echo")
	repo.Commit("main", fetchtest.Texts(map[string]string{"func.yml": "x"}))
	archive := repo.Git("archive", "main")
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(archive)), nil
	})
	require.NoError(t, err)
	h := newOCIHost(t)
	h.push(t, "g/echo:1", l)
	c := get(t, newStore(t), h.host+"/g/echo:1")
	require.Equal(t, "x", read(t, c, "func.yml"))
	entries, err := os.ReadDir(c.Root)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

func TestRegistryThatLiesIsNotBelieved(t *testing.T) {
	h := newOCIHost(t)
	h.push(t, "g/echo:1", layer(t, tar.Header{Name: "func.yml", Uname: "x"}))
	h.lie.Store(true)
	s := newStore(t)
	refused(t, s, h.host+"/g/echo:1")
	require.Empty(t, components(t, s))
	h.lie.Store(false)
	get(t, s, h.host+"/g/echo:1")
}

func TestPrivateImageNeedsCredentialsThatItsRegistryAccepts(t *testing.T) {
	h := newOCIHost(t)
	digest := h.push(t, "g/echo:1", layer(t, tar.Header{Name: "func.yml", Uname: "x"}))
	h.password.Store(secret)
	s := newStore(t)
	login := loginAt(h.host, user, secret)
	for _, ref := range []string{h.host + "/g/echo:1", h.host + "/g/echo@" + digest} {
		get(t, s, ref, login)
		require.Contains(t, refused(t, s, ref), "the server wants credentials")
		require.Contains(t, refused(t, s, ref, loginAt(h.host, user, "another")), "the server refuses the credentials")
	}
	requireNoCredentials(t, s)
}

// roundTrip is a transport.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Symptom: a login for docker.io, as CI_REGISTRY or podman names Docker Hub, was not presented there.
func TestALoginForDockerIOIsOneForDockerHub(t *testing.T) {
	s := newStore(t)
	s.client.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
		answer := httptest.NewRecorder()
		require.Equal(t, "index.docker.io", r.URL.Host)
		if _, password, _ := r.BasicAuth(); password == secret {
			answer.WriteHeader(http.StatusNotFound)
		} else {
			answer.Header().Set("WWW-Authenticate", `Basic realm="r"`)
			answer.WriteHeader(http.StatusUnauthorized)
		}
		return answer.Result(), nil
	})
	for _, server := range []string{"docker.io", "index.docker.io"} {
		require.Contains(t, refused(t, s, "docker.io/g/echo:1", loginAt(server, user, secret)), "HTTP status 404", server)
	}
}

// Symptom: a VM whose address had used up what Docker Hub gives to all did not use its login.
func TestALoginIsUsedWhereTheRegistryHasHadTooManyRequests(t *testing.T) {
	h := newOCIHost(t)
	h.push(t, "g/echo:1", layer(t, tar.Header{Name: "func.yml", Uname: "x"}))
	h.busy.Store(true)
	get(t, newStore(t), h.host+"/g/echo:1", loginAt(h.host, user, secret))
}

func TestLayersThatMeanHarmAreRefused(t *testing.T) {
	h := newOCIHost(t)
	for want, entry := range map[string]tar.Header{
		"(it has .. in it)":     {Name: "../evil", Uname: "x"},
		"absolute":              {Name: "/etc/evil", Uname: "x"},
		"symlink leads outside": {Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/etc"},
		"hard link":             {Name: "h", Typeflag: tar.TypeLink, Linkname: "a"},
		"the entry is a device": {Name: "d", Typeflag: tar.TypeChar},
		".git directory":        {Name: ".git/config", Uname: "x"},
	} {
		h.push(t, "g/evil:1", layer(t, tar.Header{Name: "a", Uname: "x"}, entry))
		s := newStore(t)
		require.Contains(t, refused(t, s, h.host+"/g/evil:1"), want)
		require.Empty(t, components(t, s))
	}
	s := newStore(t)
	s.limits.total = 100
	h.push(t, "g/large:1", layer(t, tar.Header{Name: "a", Uname: strings.Repeat("x", 1000)}))
	require.Contains(t, refused(t, s, h.host+"/g/large:1"), "size")
}

func TestMemoryForAnImageIsBounded(t *testing.T) {
	h := newOCIHost(t)
	var upper, lower []tar.Header
	for i := range 6 {
		upper = append(upper, tar.Header{Name: fmt.Sprintf(".wh.%d", i)})
		lower = append(lower, tar.Header{Name: strconv.Itoa(i)})
	}
	h.push(t, "g/many:1", layer(t, lower...), layer(t, upper...))
	s := newStore(t)
	s.limits.entries = 11
	require.Contains(t, refused(t, s, h.host+"/g/many:1"), "the layers of the image have more than 11 entries")
	s.limits.entries = 12
	get(t, s, h.host+"/g/many:1")

	// A frame of zstd with a window of 512 MiB, and one block, which is an empty archive.
	frame := append([]byte("\x28\xb5\x2f\xfd\x00\x98"), 1024<<3&0xff|1, 1024<<3>>8, 0)
	h.push(t, "g/window:1", static.NewLayer(append(frame, make([]byte, 1024)...), types.OCILayerZStd))
	require.Contains(t, refused(t, s, h.host+"/g/window:1"), "window size exceeded")
	frame[5] = 0x80 // 64 MiB
	h.push(t, "g/window:2", static.NewLayer(append(frame, make([]byte, 1024)...), types.OCILayerZStd))
	get(t, s, h.host+"/g/window:2")

	ref, err := name.ParseReference("registry.test/a/b:c")
	require.NoError(t, err)
	for _, size := range []int64{-1, maxConfig + 1} {
		manifest := fmt.Appendf(nil, `{"schemaVersion":2,"config":{"digest":"sha256:%s","size":%d},"layers":[]}`, emptySum,
			size)
		client := &http.Client{Transport: saying{manifest, nil, string(types.OCIManifestSchema1)}}
		from := &fetcher{Store: &Store{client: client}}
		d, err := remote.Get(ref, from.options(t.Context(), nil, nil)...)
		require.NoError(t, err)
		_, err = pick(d)
		require.ErrorContains(t, err,
			fmt.Sprintf("the configuration of the image has the size %d, the limit is 4194304 bytes", size))
	}
}
