package actionservices

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"
)

const (
	// dialTimeout bounds the time until a server takes a connection, and headerTimeout that until it answers: it may put
	// the parts of an artifact together first.
	dialTimeout, headerTimeout = 30 * time.Second, 10 * time.Minute
	// maxRewritten bounds an answer with URLs, in bytes. A Door has one at a time in memory.
	maxRewritten = 8 << 20
)

// relay passes the requests of a job to a Gitea server that the job does not reach: those for its paths, and those of
// clients that use the port as their proxy. It passes nothing to other servers. Requests and answers are streams.
type relay struct {
	server *url.URL // as people and the job know it
	by     *url.URL // as this machine reaches it
	client *http.Transport
	proxy  httputil.ReverseProxy

	rewriting sync.Mutex // held while an answer is in memory

	mu      sync.Mutex     // guards the following
	over    bool           // no tunnel begins
	tunnels sync.WaitGroup // connections of the proxy's clients
}

// newRelay returns a relay. The caller closes it.
func newRelay(server, by string) (*relay, error) {
	r := &relay{client: http.DefaultTransport.(*http.Transport).Clone()}
	var err error
	if r.server, err = url.Parse(strings.TrimRight(server, "/")); err == nil {
		r.by, err = url.Parse(strings.TrimRight(by, "/"))
	}
	if err != nil {
		return nil, err
	}
	r.client.ResponseHeaderTimeout = headerTimeout
	r.client.DialContext = (&net.Dialer{Timeout: dialTimeout}).DialContext
	r.proxy = httputil.ReverseProxy{
		Transport: r.client, Rewrite: r.rewrite, ModifyResponse: r.answered, FlushInterval: -1,
		ErrorLog: log.New(io.Discard, "", 0), // the client gets the error
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			answer(w, refuse(http.StatusBadGateway, "stepmux passes this on to the server, which fails: %.300s", err.Error()))
		},
	}
	return r, nil
}

// close ends the tunnels. Other requests have ended.
func (r *relay) close() {
	r.mu.Lock()
	r.over = true
	r.mu.Unlock()
	r.tunnels.Wait()
	r.client.CloseIdleConnections()
}

// own are the beginnings of paths that the services answer themselves.
var own = []string{"/_apis/artifactcache/", strings.TrimPrefix(cacheService, "POST "), "/caches/", "/uploads/"}

// takes reports whether a request is for the server. A cache has URLs with a signature, a repository has not.
func (r *relay) takes(req *http.Request) bool {
	if req.Method == http.MethodConnect || req.URL.IsAbs() {
		return true
	}
	for i, prefix := range own {
		if strings.HasPrefix(req.URL.Path, prefix) && (i < 2 || req.URL.Query().Has("sig")) {
			return false
		}
	}
	return true
}

// serve passes a request on until it ends or life does.
func (r *relay) serve(life context.Context, w http.ResponseWriter, req *http.Request) {
	path, below := strings.CutPrefix(req.URL.Path, r.server.Path)
	switch {
	case req.Method == http.MethodConnect && req.Host != address(r.server),
		req.URL.IsAbs() && (req.URL.Scheme != r.server.Scheme || address(req.URL) != address(r.server)):
		answer(w, refuse(http.StatusForbidden, "stepmux passes requests on to %s only", r.server.Host))
	case req.Method == http.MethodConnect:
		r.tunnel(life, w)
	case !below || path != "" && path[0] != '/':
		answer(w, refuse(http.StatusNotFound, "stepmux passes on what is below %s", r.server.Path+"/"))
	default:
		c := http.NewResponseController(w)
		_ = c.SetReadDeadline(time.Time{})  // a connection has deadlines; a file takes as long as it takes
		_ = c.SetWriteDeadline(time.Time{}) // as above
		ctx := context.WithValue(req.Context(), asked{}, req)
		r.proxy.ServeHTTP(w, req.WithContext(ctx)) //nolint:contextcheck // life ends the connections, and these it
	}
}

// address is the host and the port of a URL.
func address(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// rewrite makes the request to the server.
func (r *relay) rewrite(p *httputil.ProxyRequest) {
	out := p.Out
	out.URL.Scheme, out.URL.Host, out.Host = r.by.Scheme, r.by.Host, r.by.Host
	out.URL.Path = r.by.Path + strings.TrimPrefix(out.URL.Path, r.server.Path)
	out.URL.RawPath = ""
	if raw, ok := strings.CutPrefix(p.In.URL.EscapedPath(), r.server.EscapedPath()); ok {
		out.URL.RawPath = r.by.EscapedPath() + raw // url uses it if it is one of Path
	}
	for name := range out.Header { // the server may trust this machine with them
		if name == "X-Real-Ip" || name == "Upgrade" || name == "Connection" || strings.HasPrefix(name, "X-Webauth-") {
			out.Header.Del(name)
		}
	}
	if hasURLs(p.In) {
		out.Header.Set("Accept-Encoding", "identity")
	}
}

// artifactURLs finds URLs of the services for artifacts in a text of JSON.
var artifactURLs = regexp.MustCompile(`"https?://[^/"\\]+((?:/[^/"\\]+)*/` +
	`(?:api/actions_pipeline|twirp/github\.actions\.results\.api\.v1\.ArtifactService)/)`)

// hasURLs reports whether the answer to a request may have URLs of the server, which the job does not reach.
func hasURLs(req *http.Request) bool {
	return !req.URL.IsAbs() && !strings.HasSuffix(req.URL.Path, "/download") &&
		artifactURLs.MatchString(`"http://x`+req.URL.Path)
}

// answered lets the URLs of an answer lead here.
func (r *relay) answered(resp *http.Response) error {
	in, ok := resp.Request.Context().Value(asked{}).(*http.Request)
	if !ok {
		return errors.New("the request is not known")
	}
	here := "http://" + in.Host
	if in.URL.IsAbs() {
		here = r.server.Scheme + "://" + r.server.Host
	}
	if to, err := url.Parse(resp.Header.Get("Location")); err == nil && to.Host != "" &&
		(to.Host == r.by.Host || to.Host == r.server.Host) {
		at := strings.TrimPrefix(to.String(), to.Scheme+"://"+to.Host)
		resp.Header.Set("Location", here+at)
	}
	if !hasURLs(in) || !strings.Contains(resp.Header.Get("Content-Type"), "json") {
		return nil
	}
	r.rewriting.Lock()
	defer r.rewriting.Unlock()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxRewritten+1))
	_ = resp.Body.Close() // it was read
	if err == nil && len(text) > maxRewritten {
		err = fmt.Errorf("the answer has more than %d MiB", maxRewritten>>20)
	}
	if err != nil {
		return err
	}
	text = artifactURLs.ReplaceAll(text, []byte(`"`+strings.ReplaceAll(here, "$", "$$")+"$1"))
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	resp.Header.Set("Content-Length", fmt.Sprint(len(text)))
	return nil
}

// asked is the key of the request of the client in the context of that to the server.
type asked struct{}

// tunnel carries the bytes of a connection to the server, for a client that speaks TLS with it.
func (r *relay) tunnel(life context.Context, w http.ResponseWriter) {
	r.mu.Lock()
	if r.over {
		r.mu.Unlock()
		return
	}
	r.tunnels.Add(1)
	r.mu.Unlock()
	defer r.tunnels.Done()
	to := r.server
	if r.by.Scheme == "https" { // the client's TLS is with the same server, by its other name
		to = r.by
	}
	far, err := r.client.DialContext(life, "tcp", address(to))
	if err != nil {
		answer(w, refuse(http.StatusBadGateway, "stepmux does not reach the server: %.300s", err.Error()))
		return
	}
	defer far.Close()
	near, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		answer(w, err)
		return
	}
	defer near.Close()
	defer context.AfterFunc(life, func() {
		near.Close()
		far.Close()
	})()
	_ = near.SetDeadline(time.Time{}) // a connection has deadlines
	if _, err = io.WriteString(near, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return
	}
	var up sync.WaitGroup
	up.Go(func() {
		_, _ = io.Copy(far, buffered) // until one of them ends
		far.Close()
	})
	_, _ = io.Copy(near, far) // as above
	near.Close()
	up.Wait()
}
