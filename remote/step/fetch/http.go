package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"
)

const (
	maxRedirects = 10
	// stallTime is how long a server may send nothing.
	stallTime = time.Minute
)

// metadata are the addresses at which clouds tell a machine its secrets. No step is there.
var metadata = []netip.Addr{netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("fd00:ec2::254")}

// newClient returns a client that presents credentials only where they belong.
func newClient() *http.Client {
	dialer := &net.Dialer{Timeout: 30 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		for _, m := range metadata {
			if err == nil && at.Addr().Unmap() == m {
				return errors.New("the address is that of the cloud's metadata, where no steps are")
			}
		}
		return nil
	}}
	return &http.Client{
		Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           dialer.DialContext,
			ForceAttemptHTTP2:     true,
			TLSHandshakeTimeout:   15 * time.Second,
			ResponseHeaderTimeout: stallTime,
			IdleConnTimeout:       30 * time.Second,
		},
		CheckRedirect: checkRedirect,
	}
}

// checkRedirect follows no redirect to what is less safe, and takes no credentials elsewhere.
func checkRedirect(req *http.Request, via []*http.Request) error {
	last := via[len(via)-1].URL
	switch {
	case len(via) >= maxRedirects:
		return fmt.Errorf("the server redirects more than %d times", maxRedirects)
	case req.URL.Scheme != "https" && req.URL.Scheme != last.Scheme:
		return fmt.Errorf("the server redirects from %s to %s, which is less safe", last.Scheme, req.URL.Scheme)
	case req.URL.User != nil:
		return errors.New("the server redirects to an address with credentials in it")
	}
	if origin(req.URL) != origin(via[0].URL) {
		req.Header.Del("Authorization")
	}
	return nil
}

// get asks for u, as login if that is not nil. The caller closes the body of the response, which ends when the server
// sends nothing for limits.stall. A status that is none of ok is an *AccessError or another error.
func (f *fetcher) get(ctx context.Context, u *url.URL, login *Login, header http.Header, ok ...int) (*http.Response,
	error,
) {
	plain := *u
	plain.User, plain.Fragment = nil, ""
	ctx, cancel := context.WithCancelCause(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, plain.String(), nil)
	if err != nil {
		cancel(nil)
		return nil, errors.New("the address is invalid")
	}
	for key, values := range header {
		req.Header[key] = values
	}
	if login != nil {
		req.Header.Set("Authorization", login.header())
	}
	resp, err := f.client.Do(req)
	if err != nil {
		cancel(nil)
		return nil, withoutURL(err)
	}
	resp.Body = newWatched(resp.Body, f.limits.stall, cancel)
	for _, status := range ok {
		if resp.StatusCode == status {
			return resp, nil
		}
	}
	resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound:
		return nil, &AccessError{Status: resp.StatusCode, Presented: login != nil}
	}
	return nil, fmt.Errorf("the server answers %s", printable(resp.Status, 100))
}

// withoutURL strips the address of an error of the client: it may hold what is to be kept.
func withoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// asking calls ask without credentials and, if the server wants some and there are, with login. It reports whether they
// were needed.
func asking[T any](login *Login, ask func(*Login) (T, error)) (result T, private bool, err error) {
	result, err = ask(nil)
	if _, refused := errors.AsType[*AccessError](err); !refused || login == nil {
		return result, false, err
	}
	result, err = ask(login)
	return result, true, err
}

// watched is a body that is given up when nothing comes for some time.
type watched struct {
	io.ReadCloser
	most   time.Duration
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

func newWatched(body io.ReadCloser, most time.Duration, cancel context.CancelCauseFunc) *watched {
	w := &watched{ReadCloser: body, most: most, cancel: cancel}
	w.timer = time.AfterFunc(most, func() { cancel(fmt.Errorf("the server has sent nothing for %v", most)) })
	return w
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if err == nil {
		w.timer.Reset(w.most)
	}
	return n, err
}

// Close ends the request, too.
func (w *watched) Close() error {
	err := w.stop()
	w.cancel(nil)
	return err
}

func (w *watched) stop() error {
	w.timer.Stop()
	return w.ReadCloser.Close()
}

// finish reads what little is left of a body, so that its connection can be used again.
func finish(body io.Reader) { _, _ = io.CopyN(io.Discard, body, 4<<10) }

func isHTTP(u *url.URL) bool {
	return strings.EqualFold(u.Scheme, "http") || strings.EqualFold(u.Scheme, "https")
}
