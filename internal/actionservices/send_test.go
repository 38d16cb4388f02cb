package actionservices_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/actionservices"
	"github.com/stepmux/stepmux/internal/boundedhttp"
)

// offered is a part of a file that a connection could take from elsewhere.
type offered struct {
	digest           string
	size, at, length int64
}

// takingListener has connections that note what they are offered, as those to a VM.
type takingListener struct {
	net.Listener
	offers chan offered
}

func (l takingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return takingConn{conn, l.offers}, err
}

type takingConn struct {
	net.Conn
	offers chan offered
}

func (c takingConn) ReadFrom(r io.Reader) (int64, error) {
	if limited, ok := r.(*io.LimitedReader); ok {
		if of, ok := limited.R.(interface {
			io.Seeker
			Content() (string, int64)
		}); ok {
			o := offered{length: limited.N}
			o.digest, o.size = of.Content()
			o.at, _ = of.Seek(0, io.SeekCurrent)
			c.offers <- o
		}
	}
	return io.Copy(struct{ io.Writer }{c.Conn}, r)
}

// All bytes of a part of a cache are offered, with the digest of the whole. The digest of an artifact is not known.
func TestAPartOfACacheIsOfferedByItsDigest(t *testing.T) {
	s := actionservices.New(actionservices.Config{Dir: t.TempDir(), Caches: filepath.Join(t.TempDir(), "caches")})
	defer s.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	offers := make(chan offered, 1)
	server := boundedhttp.ServeFiles(takingListener{listener, offers}, s, nil)
	defer server.Close()
	token, end := s.Begin(actionservices.Job{Run: "1", Name: "job"})
	defer end()
	c := caller{t, "http://" + listener.Addr().String(), token}

	text := strings.Repeat("text", 1000)
	_, made := c.do(http.MethodPost, cacheService+"CreateCacheEntry", []byte(`{"key":"k","version":"v"}`))
	status, _ := c.do(http.MethodPut, made["signed_upload_url"].(string), []byte(text))
	require.Equal(t, http.StatusCreated, status)
	c.do(http.MethodPost, cacheService+"FinalizeCacheEntryUpload",
		fmt.Appendf(nil, `{"key":"k","version":"v","size_bytes":"%d"}`, len(text)))
	digest := fmt.Sprintf("%x", sha256.Sum256([]byte(text)))
	require.Equal(t, offered{digest: digest, size: 4000}, <-offers, "when it is saved")
	_, found := c.do(http.MethodPost, cacheService+"GetCacheEntryDownloadURL", []byte(`{"key":"k","version":"v"}`))
	at := found["signed_download_url"].(string)
	for asked, want := range map[string]offered{
		"":              {digest, 4000, 0, 4000},
		"bytes=100-299": {digest, 4000, 100, 200},
		"bytes=-1":      {digest, 4000, 3999, 1},
	} {
		status, _ := c.do(http.MethodGet, at, nil, "Range", asked)
		require.Less(t, status, 300)
		require.Equal(t, want, <-offers)
	}

	upload := c.upload("a")
	status, _ = c.do(http.MethodPut, upload, []byte(text), "X-Ms-Blob-Type", "BlockBlob")
	require.Equal(t, http.StatusCreated, status)
	c.do(http.MethodPost, artifactService+"FinalizeArtifact", fmt.Appendf(nil, `{"name":"a","size":"%d"}`, len(text)))
	_, found = c.do(http.MethodPost, artifactService+"GetSignedArtifactURL", []byte(`{"name":"a"}`))
	status, _ = c.do(http.MethodGet, found["signed_url"].(string), nil)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, offered{size: 0, length: 4000}, <-offers)
}
