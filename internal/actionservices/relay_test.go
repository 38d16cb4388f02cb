package actionservices_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/actionservices"
)

// listen lets clients reach a door at an address, until the test ends.
func listen(t *testing.T, door *actionservices.Door) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			door.Take(conn)
		}
	})
	t.Cleanup(func() {
		listener.Close()
		door.Close()
		accepting.Wait()
	})
	return "http://" + listener.Addr().String()
}

// relayed starts a server behind a door, and returns the address of the door.
func relayed(t *testing.T, server string, by *httptest.Server, path string) string {
	t.Helper()
	s := actionservices.New(actionservices.Config{Dir: t.TempDir()})
	t.Cleanup(s.Close)
	door := s.Door(nil)
	require.NoError(t, door.PassOn(server, by.URL+path))
	return listen(t, door)
}

// head is the head of an answer.
type head struct {
	StatusCode int
	Header     http.Header
}

// get makes a request, and returns the answer and its text.
func get(t *testing.T, client *http.Client, method, at string, body io.Reader) (head, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, at, body)
	require.NoError(t, err)
	req.Header.Set("X-Webauth-User", "root")
	req.Header.Set("X-Forwarded-For", "10.0.0.1")
	req.Header.Set("Authorization", "Bearer of-the-job")
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return head{resp.StatusCode, resp.Header}, string(text)
}

func TestARelayPassesOnWhatIsForItsServer(t *testing.T) {
	const pipeline = "/api/actions_pipeline/_apis/pipelines/workflows/7/artifacts"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name := range r.Header {
			if strings.HasPrefix(name, "X-") {
				t.Errorf("the server gets %s", name)
			}
		}
		switch {
		case r.URL.Path == "/inner"+pipeline:
			w.Header().Set("Content-Type", "application/json;charset=utf-8")
			_ = json.NewEncoder(w).Encode(map[string]string{
				"fileContainerResourceUrl": "https://other.example.com/git" + pipeline + "/x/upload?a=1&b=2",
				"name":                     "https://x.y/z",
			})
		case strings.HasSuffix(r.URL.Path, "/big"):
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(make([]byte, 9<<20))
		case r.URL.Path == "/inner/moved":
			http.Redirect(w, r, "https://gitea.example.com/git/ann/new?q=1", http.StatusMovedPermanently)
		case r.Method == http.MethodPut:
			n, _ := io.Copy(io.Discard, r.Body)
			_ = json.NewEncoder(w).Encode(n)
		default:
			_, _ = io.WriteString(w, r.Host+" "+r.URL.RequestURI()+" "+r.Header.Get("Authorization"))
		}
	}))
	t.Cleanup(server.Close)
	at := relayed(t, "https://gitea.example.com/git/", server, "/inner")
	client := &http.Client{Transport: &http.Transport{}, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	defer client.CloseIdleConnections()

	_, text := get(t, client, "GET", at+"/git/ann/a%2Fb?x=1", nil)
	require.Equal(t, strings.TrimPrefix(server.URL, "http://")+" /inner/ann/a%2Fb?x=1 Bearer of-the-job", text)
	_, text = get(t, client, "POST", at+"/git"+pipeline, strings.NewReader("{}"))
	var told map[string]string
	require.NoError(t, json.Unmarshal([]byte(text), &told))
	require.Equal(t, map[string]string{
		"fileContainerResourceUrl": at + "/git" + pipeline + "/x/upload?a=1&b=2", "name": "https://x.y/z",
	}, told)
	_, text = get(t, client, "PUT", at+"/git"+pipeline+"/x/upload", io.LimitReader(zeros{}, 32<<20))
	require.Equal(t, "33554432\n", text)
	resp, text := get(t, client, "GET", at+"/git"+pipeline+"/big", nil)
	require.Equal(t, http.StatusBadGateway, resp.StatusCode)
	require.Contains(t, text, "the answer has more than 8 MiB")
	resp, _ = get(t, client, "GET", at+"/git/moved", nil)
	require.Equal(t, at+"/git/ann/new?q=1", resp.Header.Get("Location"))
	for path, status := range map[string]int{
		"/admin": http.StatusNotFound, "/gitother": http.StatusNotFound,
		"/_apis/artifactcache/cache?keys=a": http.StatusUnauthorized,
	} {
		resp, text = get(t, client, "GET", at+path, nil)
		require.Equal(t, status, resp.StatusCode, "%s: %s", path, text)
	}

	proxied := &http.Client{Transport: &http.Transport{
		Proxy: func(*http.Request) (*url.URL, error) { return url.Parse(at) },
	}}
	defer proxied.CloseIdleConnections()
	resp, text = get(t, proxied, "GET", "http://other.example.com/", nil)
	require.Equal(t, http.StatusForbidden, resp.StatusCode)
	require.Contains(t, text, "stepmux passes requests on to gitea.example.com only")
	refused, err := proxied.Get("https://other.example.com/")
	require.ErrorContains(t, err, "Forbidden")
	if err == nil {
		refused.Body.Close()
	}
	server.Close()
	resp, text = get(t, client, "GET", at+"/git/", nil)
	require.Equal(t, http.StatusBadGateway, resp.StatusCode)
	require.Contains(t, text, "stepmux passes this on to the server, which fails")
}

// zeros is an endless reader.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// A client whose proxy is the door speaks TLS with the server itself.
func TestARelayIsAProxyForItsServer(t *testing.T) {
	hello := func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Host+r.URL.Path) }
	secure := httptest.NewTLSServer(http.HandlerFunc(hello))
	t.Cleanup(secure.Close)
	plain := httptest.NewServer(http.HandlerFunc(hello))
	t.Cleanup(plain.Close)
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	for server, by := range map[string]*httptest.Server{secure.URL: secure, "http://gitea.invalid:3000": plain} {
		s := actionservices.New(actionservices.Config{Dir: t.TempDir()})
		door := s.Door(nil)
		require.NoError(t, door.PassOn(server, by.URL))
		at := listen(t, door)
		client := &http.Client{Transport: &http.Transport{
			Proxy:           func(*http.Request) (*url.URL, error) { return url.Parse(at) },
			TLSClientConfig: &tls.Config{RootCAs: roots},
		}}
		_, text := get(t, client, "GET", server+"/ann/demo", nil)
		require.Equal(t, by.Listener.Addr().String()+"/ann/demo", text)
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			door.Close() // the connection of the client is still open
		}()
		timer := time.NewTimer(time.Minute)
		select {
		case <-closed:
		case <-timer.C:
			t.Fatal("a tunnel outlives its door")
		}
		timer.Stop()
		client.CloseIdleConnections()
		s.Close()
	}
}
