package fetch

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/stepmux/stepmux/internal/netfault"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/remote/step/component"
)

const (
	maxRedirects = 10
	// stallTime is the longest time without a byte from the server.
	stallTime = time.Minute
)

var errMetadata = errors.New("the address belongs to the cloud's metadata service; steps are not fetched from there")

// metadata are the addresses at which clouds give a machine its secrets. Steps are never fetched from there.
var metadata = []netip.Addr{netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("fd00:ec2::254")}

// newClient returns a client that follows only safe redirects and never calls a metadata service.
func newClient() *http.Client {
	dialer := &net.Dialer{Timeout: 30 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		for _, m := range metadata {
			if err == nil && at.Addr().Unmap() == m {
				return errMetadata
			}
		}
		return nil
	}}
	return &http.Client{
		Transport: network{&http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           dialer.DialContext,
			ForceAttemptHTTP2:     true,
			TLSHandshakeTimeout:   15 * time.Second,
			ResponseHeaderTimeout: stallTime,
			IdleConnTimeout:       30 * time.Second,
		}},
		CheckRedirect: checkRedirect,
	}
}

// network is a transport whose errors are faults, as are those of the bodies of its answers.
type network struct{ *http.Transport }

// RoundTrip implements [http.RoundTripper].
func (n network) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := n.Transport.RoundTrip(req)
	if err != nil {
		return nil, unreached(err)
	}
	resp.Body = body{resp.Body}
	return resp, nil
}

// unreached returns the error of a request that has no answer: a fault, unless the address can lead to no server.
func unreached(err error) error {
	_, impossible := errors.AsType[*net.AddrError](err)
	if impossible || errors.Is(err, errMetadata) {
		return err
	}
	return fault{err, true}
}

// body is the body of an answer of a network.
type body struct{ io.ReadCloser }

func (b body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF { //nolint:errorlint // a body ends with io.EOF itself
		err = fault{err, true}
	}
	return n, err
}

// ofStatus returns err, the error of an answer with this status. It is a fault if the request may succeed later.
func ofStatus(status int, err error) error {
	if netfault.OfServer(status) {
		return fault{err, true}
	}
	return err
}

// checkRedirect refuses redirects to a less safe protocol, and removes credentials from redirects to another server.
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
	if component.Origin(req.URL) != component.Origin(via[0].URL) {
		req.Header.Del("Authorization")
		req.Header.Del("Referer") // its query may be secret
	}
	return nil
}

// get requests u, with login if that is not nil. The caller closes the body of the response. The body fails when the
// server sends no byte for limits.stall. A status that is not in ok is an *AccessError or another error.
func (f *fetcher) get(
	ctx context.Context, u *url.URL, login *Login, header http.Header, ok ...int,
) (*http.Response, error) {
	plain := *u
	plain.User, plain.Fragment = nil, ""
	ctx, cancel := context.WithCancelCause(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, plain.String(), nil)
	if err != nil {
		cancel(nil)
		return nil, errors.New("the address is invalid")
	}
	maps.Copy(req.Header, header)
	if login != nil {
		req.Header.Set("Authorization", basicAuth(login))
	}
	resp, err := f.client.Do(req)
	if err != nil {
		cancel(nil)
		return nil, withoutURL(err)
	}
	resp.Body = newStallGuard(resp.Body, f.limits.stall, cancel)
	if slices.Contains(ok, resp.StatusCode) {
		return resp, nil
	}
	resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound:
		return nil, &AccessError{Status: resp.StatusCode, Presented: login != nil}
	case http.StatusTooManyRequests:
		return nil, errTooMany
	}
	return nil, ofStatus(resp.StatusCode, fmt.Errorf("the server answers %s", termtext.Short(resp.Status, 100)))
}

// withoutURL removes the address from an error of the client, because it may contain credentials.
func withoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// errTooMany says that a server answers no more requests now, from this address or by this login.
var errTooMany = fault{fmt.Errorf("the server answers %d %s", http.StatusTooManyRequests,
	http.StatusText(http.StatusTooManyRequests)), true}

// anonymousFirst calls ask without credentials and, if the server refuses that, or has had too many requests, and login
// is not nil, with login. private says that credentials were needed.
func anonymousFirst[T any](login *Login, ask func(*Login) (T, error)) (result T, private bool, err error) {
	result, err = ask(nil)
	_, refused := errors.AsType[*AccessError](err)
	if login == nil || !refused && !errors.Is(err, errTooMany) {
		return result, false, err
	}
	result, err = ask(login)
	return result, true, err
}

// stallGuard is a body whose request is cancelled when no byte arrives for some time.
type stallGuard struct {
	io.ReadCloser
	most   time.Duration
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

func newStallGuard(body io.ReadCloser, most time.Duration, cancel context.CancelCauseFunc) *stallGuard {
	stalled := fmt.Errorf("the server has sent nothing for %v", most)
	return &stallGuard{body, most, time.AfterFunc(most, func() { cancel(stalled) }), cancel}
}

func (w *stallGuard) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if err == nil {
		w.timer.Reset(w.most)
	}
	return n, err
}

// Close closes the body and cancels the request.
func (w *stallGuard) Close() error {
	defer w.cancel(nil)
	w.timer.Stop()
	return w.ReadCloser.Close()
}

// drain reads the short rest of a body, so that its connection can be reused.
func drain(body io.Reader) { _, _ = io.CopyN(io.Discard, body, 4<<10) }

func isHTTP(u *url.URL) bool {
	return strings.EqualFold(u.Scheme, "http") || strings.EqualFold(u.Scheme, "https")
}

// basicAuth returns the value of an Authorization header that presents l.
func basicAuth(l *Login) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(l.User+":"+l.Password))
}
