// Package servercall calls the API of a CI server: a [Client] sends a small request and reads the whole answer, up to a
// bound. It follows no redirect, because a request has tokens. [Retry], [Temporary] and [Wait] are for all that call
// such servers: when a call is repeated, and when next. The owner of a Client closes it.
package servercall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
)

const (
	maxHeader = 64 << 10 // bounds the header of an answer, in bytes
	// maxIdle is how many connections stay open: many jobs of a server are reported at once.
	maxIdle = 16
)

// Client calls a server. It is safe for concurrent use.
type Client struct{ http *http.Client }

// New returns a client that owns the transport. If that is nil, one that trusts the system's authorities.
func New(transport *http.Transport) *Client {
	if transport == nil {
		transport = http.DefaultTransport.(*http.Transport).Clone()
	}
	transport.MaxIdleConnsPerHost, transport.MaxResponseHeaderBytes = maxIdle, maxHeader
	return &Client{&http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close closes connections that no call uses.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Request is a call.
type Request struct {
	Method, URL string
	Header      http.Header
	Body        []byte
	// Max bounds the body of the answer, in bytes. Required.
	Max int64
}

// Answer is the answer to a call, whatever its status.
type Answer struct {
	Status int
	Header http.Header
	Text   []byte // the body
}

// Do makes a call once. ctx bounds it. An error does not quote the URL.
func (c *Client) Do(ctx context.Context, r Request) (*Answer, error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, r.URL, bytes.NewReader(r.Body))
	if err != nil {
		return nil, WithoutURL(err)
	}
	maps.Copy(req.Header, r.Header)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, WithoutURL(err)
	}
	defer resp.Body.Close()
	var text []byte
	if resp.ContentLength <= r.Max {
		text, err = io.ReadAll(io.LimitReader(resp.Body, r.Max+1))
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the answer: %w", err)
	case max(resp.ContentLength, int64(len(text))) > r.Max:
		return nil, fmt.Errorf("%w: more than %d MiB", ErrTooLarge, r.Max>>20)
	}
	return &Answer{resp.StatusCode, resp.Header, text}, nil
}

// ErrTooLarge says that an answer is larger than a call takes.
var ErrTooLarge = errors.New("the answer is too large")

// WithoutURL removes the address from an error of net/http, because its query may be a signature.
func WithoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}
