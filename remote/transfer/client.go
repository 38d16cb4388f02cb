package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/stepmux/stepmux/internal/buildinfo"
	"github.com/stepmux/stepmux/internal/servercall"
)

const maxRedirects = 10

// Config configures a [Client].
type Config struct {
	// CAFile has certificates of authorities to trust in addition to the system's. CertFile and KeyFile are the
	// client's own certificate and key. All are optional.
	CAFile, CertFile, KeyFile string
	// Timeout bounds each attempt. If zero, an attempt may last as long as bytes move.
	Timeout time.Duration
	// HeaderTimeout bounds the wait for the answer after the whole request is sent. If zero, 10 minutes.
	HeaderTimeout time.Duration
	// Stall is the longest time without a moving byte. If zero, one minute.
	Stall time.Duration
	// Retries is how often a failed attempt is repeated.
	Retries int
	// RetryTime is the wait after the first attempt. It doubles after each further one. If zero, one second.
	RetryTime time.Duration
	// MeterEvery is the time between two lines about a transfer. If zero, 10 seconds. If negative, there are no such
	// lines.
	MeterEvery time.Duration
	// Log gets warnings about retries, and lines about long transfers.
	Log Log
}

// Client sends requests. It is safe for concurrent use.
type Client struct {
	cfg  Config
	http *http.Client
}

// New returns a client. The caller closes it.
func New(cfg Config) (*Client, error) {
	cfg.HeaderTimeout = cmp.Or(cfg.HeaderTimeout, 10*time.Minute)
	cfg.Stall = cmp.Or(cfg.Stall, time.Minute)
	cfg.RetryTime = cmp.Or(cfg.RetryTime, time.Second)
	cfg.MeterEvery = cmp.Or(cfg.MeterEvery, 10*time.Second)
	security, err := servercall.Files{CA: cfg.CAFile, Cert: cfg.CertFile, Key: cfg.KeyFile}.Config()
	if err != nil {
		return nil, fmt.Errorf("--tls-ca-file, --tls-cert-file and --tls-key-file: %w", err)
	}
	return &Client{cfg: cfg, http: &http.Client{
		Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           dialer(),
			TLSClientConfig:       security,
			TLSHandshakeTimeout:   15 * time.Second,
			ResponseHeaderTimeout: cfg.HeaderTimeout,
			ExpectContinueTimeout: 2 * time.Second,
			DisableCompression:    true, // bodies are archives
			ReadBufferSize:        64 << 10,
			WriteBufferSize:       64 << 10,
		},
		CheckRedirect: checkRedirect,
	}}, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// checkRedirect refuses redirects to a less safe protocol and redirects that lose the body. In a redirect to another
// server it removes the caller's headers, which may be credentials.
func checkRedirect(req *http.Request, via []*http.Request) error {
	first, last := via[0], via[len(via)-1]
	switch {
	case len(via) >= maxRedirects:
		return Local(fmt.Errorf("the server redirects more than %d times", maxRedirects))
	case req.URL.Scheme != "https" && req.URL.Scheme != last.URL.Scheme:
		return Local(fmt.Errorf("the server redirects from %s to %s, which is less safe", last.URL.Scheme, req.URL.Scheme))
	case req.URL.User != nil:
		return Local(errors.New("the server redirects to an address with credentials in it"))
	case req.Method != first.Method:
		return Local(fmt.Errorf("the server redirects the %s to %s as a %s, without its body", first.Method,
			origin(req.URL), req.Method))
	}
	if origin(req.URL) != origin(first.URL) {
		req.Header = plainHeader(req.Header.Get("Content-Type"), req.Header.Get("Expect"))
	}
	return nil
}

// plainHeader returns a header without credentials.
func plainHeader(contentType, expect string) http.Header {
	h := http.Header{"User-Agent": {"stepmux/" + buildinfo.Version()}}
	if contentType != "" {
		h.Set("Content-Type", contentType)
	}
	if expect != "" {
		h.Set("Expect", expect)
	}
	return h
}

// Request is one request.
type Request struct {
	Method string
	URL    string
	// Header has credentials, for example. After a redirect to another server only the Content-Type is sent.
	Header http.Header
	// Body returns the body. It is called again for each redirect. If nil, there is no body. The client closes each
	// body.
	Body func() (io.ReadCloser, error)
	// Length is the number of bytes of the body, or -1 if it is not known.
	Length int64
	// OK are the accepted statuses.
	OK []int
	// Label begins the lines about a long transfer, for example "Uploading artifacts". If empty, there are no such
	// lines.
	Label string
}

// Do sends r once and returns the answer. The caller closes its body. A read of the body fails when no byte arrives for
// [Config.Stall]. If the status is not in r.OK, the error is a [StatusError].
func (c *Client) Do(ctx context.Context, r Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	req, err := http.NewRequestWithContext(ctx, r.Method, r.URL, nil)
	if err != nil || !slices.Contains([]string{"http", "https"}, req.URL.Scheme) || req.URL.Host == "" {
		cancel(nil)
		return nil, Local(errors.New("the URL is not valid: it begins with https:// or http:// and names a host"))
	}
	if req.URL.User != nil {
		cancel(nil)
		return nil, Local(errors.New("the URL has a user name or password in it; remove it"))
	}
	req.Header = plainHeader("", "")
	maps.Copy(req.Header, r.Header)
	sent := &sender{client: c, request: r, cancel: cancel}
	if r.Body != nil {
		req.Header.Set("Expect", "100-continue") // so that a server can refuse before it gets the body
		req.ContentLength, req.GetBody = r.Length, sent.open
		if req.Body, err = sent.open(); err != nil {
			cancel(nil)
			return nil, err
		}
	}
	resp, err := c.http.Do(req)
	if err != nil {
		err = cmp.Or(sent.err(), contextCause(ctx), servercall.WithoutURL(err))
		cancel(nil)
		return nil, err
	}
	resp.Body = newStallGuard(ctx, resp.Body, c.cfg.Stall, cancel)
	if slices.Contains(r.OK, resp.StatusCode) {
		if r.Body == nil {
			resp.Body = meteredReader{resp.Body, newMeter(c.cfg.Log, r.Label, c.cfg.MeterEvery, resp.ContentLength)}
		}
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, statusError(resp, time.Now())
}

// contextCause returns the cause of ctx if it has ended, otherwise nil.
func contextCause(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}

// Parse parses a URL. Its error does not quote the URL.
func Parse(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("the address is not valid: it begins with https:// or http:// and names a host")
	}
	return u, nil
}

// Plain returns a URL without its query and credentials, for a log.
func Plain(address string) string {
	u, err := Parse(address)
	if err != nil {
		return "(not a URL)"
	}
	return origin(u) + u.EscapedPath()
}

// Origin returns the scheme, host and port of a URL.
func Origin(address string) string {
	u, err := Parse(address)
	if err != nil {
		return ""
	}
	return origin(u)
}
