package docker

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/moby/moby/client"

	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/internal/termtext"
)

// maxText bounds an error text of a daemon.
const maxText = 1 << 10

// api calls one daemon for one build.
type api struct {
	*client.Client
	patience time.Duration         // for an answer to a question
	refused  atomic.Pointer[error] // of the last connection; nil if that worked
}

// newAPI returns the API over connections that dial makes. version is the daemon's, if it is known.
func newAPI(
	dial func(context.Context) (net.Conn, error), version string, patience time.Duration,
) (*api, error) {
	a := &api{patience: patience}
	c, err := client.New(
		client.WithHost("http://docker"), // a name for the header; dial knows the place
		client.WithDialContext(func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := dial(ctx)
			if err != nil {
				a.refused.Store(&err)
				return nil, err
			}
			a.refused.Store(nil)
			return conn, nil
		}),
		client.WithAPIVersion(version))
	if err != nil {
		return nil, fmt.Errorf("prepare calls to the Docker daemon: %w", err)
	}
	a.Client = c
	return a, nil
}

// asking returns the context of a question, which the daemon answers at once if it is well.
func (a *api) asking(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, a.patience,
		unusable{fmt.Errorf("the Docker daemon did not answer within %v", a.patience)})
}

// failure returns the error of op. It shortens the daemon's text, which is untrusted, and adds the reason why a
// connection could not be made, because the library does not.
func (a *api) failure(ctx context.Context, op string, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%s: %w", op, cause)
	}
	if refused := a.refused.Load(); refused != nil {
		return unusable{fmt.Errorf("%s: connect to the Docker daemon: %w (is it running, and may this user open its "+
			"socket? Mostly the group docker may)", op, *refused)}
	}
	return fmt.Errorf("%s: %w", op, &daemonError{err})
}

type unusable struct{ error }

func (e unusable) Unwrap() error      { return e.error }
func (unusable) Is(target error) bool { return target == place.ErrUnusable }

// full marks an error that says that the daemon's disk is full. It is for calls in which no text of a job can be.
func full(err error) error {
	if err != nil && strings.Contains(err.Error(), "no space left on device") {
		return unusable{err}
	}
	return err
}

// daemonError is an error with at most maxText of a daemon's text, on one line.
type daemonError struct{ err error }

func (e *daemonError) Error() string { return termtext.Line(termtext.Cut(e.err.Error(), maxText)) }
func (e *daemonError) Unwrap() error { return e.err }
