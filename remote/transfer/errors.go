package transfer

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"net/url"
	"time"

	"github.com/stepmux/stepmux/internal/netfault"
	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/servercall"
	"github.com/stepmux/stepmux/internal/termtext"
)

// StatusError is an answer whose status the request does not accept.
type StatusError struct {
	Code    int           // the HTTP status
	Message string        // the server's explanation; may be empty
	Type    string        // the media type of the answer
	Origin  string        // scheme, host and port of the server that answered
	Wait    time.Duration // how long the server asks to wait; negative without such a wish
}

// Error implements error.
func (e *StatusError) Error() string {
	text := fmt.Sprintf("%s answers %d %s", e.Origin, e.Code, http.StatusText(e.Code))
	switch {
	case e.Message != "":
		text += ": " + e.Message
	case e.Type == "text/html" && e.Code < 400:
		text += " with a page of HTML (is the URL that of a GitLab server?)"
	}
	return text
}

// localError is an error of [Local]. Like errors about a path, it is not retried.
type localError struct{ error }

func (e localError) Unwrap() error { return e.error }

// Local marks err as an error of this machine, such as a full disk, or one that this client has decided on, such as an
// unsafe redirect. It is not retried. Local returns nil for nil.
func Local(err error) error {
	if err == nil {
		return nil
	}
	return localError{err}
}

// temporary reports whether the same request may succeed later. For errors of the network it returns true.
func temporary(err error) bool {
	if status, ok := errors.AsType[*StatusError](err); ok {
		return servercall.Temporary(status.Code)
	}
	_, local := errors.AsType[localError](err)
	_, file := errors.AsType[*fs.PathError](err)
	return !local && !file && !untrusted(err)
}

// untrusted reports whether err is about a server's certificate.
func untrusted(err error) bool {
	_, certificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, authority := errors.AsType[x509.UnknownAuthorityError](err)
	return certificate || authority
}

// IsFault reports whether the network, a server or this machine is at fault for an error of a transfer, and not the
// request: the same transfer may succeed later, or on another machine.
func IsFault(err error) bool {
	if status, ok := errors.AsType[*StatusError](err); ok {
		return netfault.OfServer(status.Code)
	}
	_, last := errors.AsType[*servercall.GaveUpError](err)
	return last || untrusted(err) || oserr.Exhausted(err)
}

// statusError reads the rest of the answer.
func statusError(resp *http.Response, now time.Time) *StatusError {
	e := &StatusError{Code: resp.StatusCode, Origin: origin(resp.Request.URL), Wait: servercall.Wait(resp.Header, now)}
	e.Type, _, _ = mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if e.Type == "application/json" {
		data, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10)) // a cut message does not parse
		e.Message = termtext.Short(servercall.Message(data), 200)
	}
	return e
}

// origin returns the scheme, host and port of u.
func origin(u *url.URL) string {
	port := u.Port()
	if port == "" || u.Scheme == "https" && port == "443" || u.Scheme == "http" && port == "80" {
		return u.Scheme + "://" + u.Hostname()
	}
	return u.Scheme + "://" + u.Host
}
