package kubernetes

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/mux/channel"
)

const (
	// maxText bounds an error text of a cluster.
	maxText = 1 << 10
	// maxAnswer bounds an answer of the API server.
	maxAnswer = 16 << 20
	// callTimeout bounds one call of the API.
	callTimeout = 15 * time.Second
	// firstPause and lastPause are the pauses between two attempts.
	firstPause, lastPause = 20 * time.Millisecond, 500 * time.Millisecond
	// maxWait bounds a pause that the API server asks for.
	maxWait = 5 * time.Second
)

// status is the API's object that reports the end of a command or the failure of a call.
type status struct {
	Status, Message, Reason string
	Details                 struct {
		Causes []struct{ Reason, Message string }
	}
}

const statusSuccess, statusFailure = "Success", "Failure"

// apiError is an answer of the API server with an error code.
type apiError struct {
	op   string
	code int           // of HTTP
	text string        // untrusted text
	said bool          // the API server itself has answered, not a proxy
	wait time.Duration // that the server asks for before the next call
}

func (e *apiError) Error() string {
	text := fmt.Sprintf("%s: the API server says: %s", e.op, e.text)
	switch e.code {
	case http.StatusUnauthorized:
		text += " (is the login of the kubeconfig's user still valid?)"
	case http.StatusForbidden:
		text += " (see: stepmux doctor --kubernetes)"
	}
	return text
}

// answerError returns the error of an answer with a code that is not 2xx. text is its body.
func answerError(op string, answer *http.Response, text []byte) *apiError {
	told, code := status{}, answer.StatusCode
	seconds, _ := strconv.Atoi(answer.Header.Get("Retry-After")) // zero if it is not a number
	said := json.Unmarshal(text, &told) == nil && told.Message != ""
	if !said {
		told.Message = fmt.Sprintf("%d %s", code, http.StatusText(code))
		if len(text) > 0 {
			told.Message += ": " + string(text)
		}
	}
	return &apiError{
		op: op, code: code, said: said, text: termtext.Line(termtext.Cut(told.Message, maxText)),
		wait: min(time.Duration(seconds)*time.Second, maxWait),
	}
}

// pauseAfter returns how long to wait after err: wait, or longer if the server asks for that. A server that is
// overloaded does.
func pauseAfter(err error, wait time.Duration) time.Duration {
	if refused, ok := errors.AsType[*apiError](err); ok {
		return max(wait, refused.wait)
	}
	return wait
}

// foreignError is an error with at most maxText bytes of an untrusted text, on one line.
type foreignError struct{ err error }

func (e *foreignError) Error() string {
	text := termtext.Line(termtext.Cut(e.err.Error(), maxText))
	if bad, ok := errors.AsType[x509.CertificateInvalidError](e.err); ok && bad.Reason == x509.Expired {
		text += " (is the clock of this machine right?)"
	}
	return text
}
func (e *foreignError) Unwrap() error { return e.err }

func foreign(err error) error { return &foreignError{err} }

// isCode reports whether err is an answer of the API server with this code.
func isCode(err error, code int) bool {
	refused, ok := errors.AsType[*apiError](err)
	return ok && refused.code == code
}

// isPassing reports whether err is transient: the API server is unreachable or overloaded, or an exec was cut.
func isPassing(err error) bool {
	if refused, ok := errors.AsType[*apiError](err); ok {
		return refused.code == http.StatusTooManyRequests || refused.code >= http.StatusInternalServerError
	}
	_, exit := errors.AsType[*channel.ExitError](err)
	_, none := errors.AsType[*noProgramError](err)
	_, ended := errors.AsType[*podError](err)
	return !exit && !none && !ended
}

// url returns the address of a path of the API.
func (c *Cluster) url(path string, query url.Values) string {
	at := *c.base
	at.Path, at.RawQuery = at.JoinPath(path).Path, query.Encode()
	return at.String()
}

// podPath returns the path of a pod, or of all pods of the namespace for "".
func (c *Cluster) podPath(name string) string {
	path := "/api/v1/namespaces/" + c.namespace + "/pods"
	if name != "" {
		path += "/" + name
	}
	return path
}

// send sends a request and returns the answer. The caller closes its body. An answer with a code other than 2xx is an
// *apiError.
func (c *Cluster) send(ctx context.Context, op, method, path string, query url.Values, body any) (
	*http.Response, error,
) {
	var text io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", op, err)
		}
		text = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.url(path, query), text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	request.Header.Set("Accept", "application/json")
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	answer, err := c.client.Do(request)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, fmt.Errorf("%s: %w", op, foreign(err))
	}
	if answer.StatusCode/100 == 2 {
		return answer, nil
	}
	defer answer.Body.Close()
	said, _ := io.ReadAll(io.LimitReader(answer.Body, maxStatus)) // as much as can be read
	return nil, answerError(op, answer, said)
}

// call makes one call and decodes its answer, unless into is nil. It returns the server's time, or zero if unknown.
func (c *Cluster) call(ctx context.Context, op, method, path string, query url.Values, body, into any) (
	time.Time, error,
) {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, fmt.Errorf("no answer within %v", callTimeout))
	defer cancel()
	answer, err := c.send(ctx, op, method, path, query, body)
	if err != nil {
		return time.Time{}, err
	}
	defer answer.Body.Close()
	now, _ := http.ParseTime(answer.Header.Get("Date")) // zero if it cannot be read
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	switch {
	case err != nil:
		return now, fmt.Errorf("%s: %w", op, foreign(err))
	case len(text) > maxAnswer:
		return now, fmt.Errorf("%s: the answer is longer than %d bytes", op, maxAnswer)
	case into == nil:
		return now, nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return now, fmt.Errorf("%s: the answer is no %T: %w", op, into, err)
	}
	return now, nil
}

// maxEnds is how often a repeated command may fail by itself.
const maxEnds = 5

// passingExec returns isPassing for one exec that is repeated in a running pod. A kubelet that has just restarted does
// not know its pods for a while. A container runtime that restarts ends its commands, so a few ends of the command
// itself count as transient. If the pod has ended, its watch reports that.
func passingExec() func(error) bool {
	ends := 0
	return func(err error) bool {
		if _, ended := errors.AsType[*channel.ExitError](err); ended {
			ends++
			return ends < maxEnds
		}
		return isPassing(err) || isCode(err, http.StatusNotFound) || isCode(err, http.StatusBadRequest)
	}
}

// persist repeats do until it succeeds, its error is not transient, or ctx ends. The error is then ctx's cause, with
// the last one of do.
func persist(ctx context.Context, passes func(error) bool, do func() error) error {
	for wait := firstPause; ; wait = min(2*wait, lastPause) {
		err := do()
		if err == nil || !passes(err) {
			return err
		}
		if pause.For(ctx, pauseAfter(err, wait)) == nil {
			continue
		}
		if cause := context.Cause(ctx); !errors.Is(err, cause) {
			return fmt.Errorf("%w; the last attempt: %w", cause, err)
		}
		return err
	}
}
