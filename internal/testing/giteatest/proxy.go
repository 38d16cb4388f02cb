package giteatest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Proxy stands between runners and a server, and notes their calls. Other requests pass through it unseen.
type Proxy struct {
	*httptest.Server

	mu    sync.Mutex // guards the following
	calls []Call
	hook  func(c Call, answered bool) (drop bool) // may be nil
}

// Call is a call of a runner.
type Call struct {
	At       time.Time       `json:"-"` // when it was answered
	Method   string          `json:"method"`
	Status   int             `json:"status"`
	Request  json.RawMessage `json:"request"` // null if the runner does not speak JSON
	Response json.RawMessage `json:"response"`
}

// NewProxy starts a proxy for the server at a URL. It ends with the test.
func NewProxy(t testing.TB, server string) *Proxy {
	t.Helper()
	target, err := url.Parse(server)
	require.NoError(t, err)
	p := &Proxy{}
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	forward.Transport = transport
	forward.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		p.serve(forward, w, req)
	}))
	t.Cleanup(func() {
		p.CloseClientConnections()
		p.Close()
		transport.CloseIdleConnections()
	})
	return p
}

func (p *Proxy) serve(forward http.Handler, w http.ResponseWriter, req *http.Request) {
	if dir, _ := path.Split(req.URL.Path); path.Dir(path.Clean(dir)) != "/api/actions" {
		forward.ServeHTTP(w, req)
		return
	}
	c := Call{Method: path.Base(req.URL.Path)}
	isJSON := req.Header.Get("Content-Type") == "application/json"
	body, err := io.ReadAll(req.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	if isJSON {
		req.Header.Del("Accept-Encoding") // the answer is kept as text
		c.Request = body
	}
	if p.drops(c, false) {
		panic(http.ErrAbortHandler) // the connection is closed
	}
	if c.Method == "FetchTask" { // a server that was asked gives a task to a runner that is gone, and the answer tells it
		req = req.WithContext(context.WithoutCancel(req.Context()))
	}
	seen := httptest.NewRecorder()
	forward.ServeHTTP(seen, req)
	c.Status, c.At = seen.Code, time.Now()
	if isJSON {
		c.Response = bytes.Clone(seen.Body.Bytes())
	}
	p.mu.Lock()
	p.calls = append(p.calls, c)
	p.mu.Unlock()
	if p.drops(c, true) {
		panic(http.ErrAbortHandler)
	}
	for name, values := range seen.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(seen.Code)
	_, _ = w.Write(seen.Body.Bytes()) // the runner may be gone
}

// Intercept lets hook see each call before the server gets it, and again with the answer before the runner gets it. If
// hook returns true, the call goes no further. If it is nil, all calls pass.
func (p *Proxy) Intercept(hook func(c Call, answered bool) (drop bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hook = hook
}

func (p *Proxy) drops(c Call, answered bool) bool {
	p.mu.Lock()
	hook := p.hook
	p.mu.Unlock()
	return hook != nil && hook(c, answered)
}

// Calls returns all calls so far.
func (p *Proxy) Calls() []Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Call(nil), p.calls...)
}

// Count returns how often methods were called, by their names.
func (p *Proxy) Count() map[string]int {
	all := map[string]int{}
	for _, c := range p.Calls() {
		all[c.Method]++
	}
	return all
}
