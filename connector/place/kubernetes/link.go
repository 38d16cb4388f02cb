package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/relay"
)

// linkTimeout bounds one attempt to make a link.
const linkTimeout = 10 * time.Second

var (
	_ connector.Conn  = (*link)(nil)
	_ connector.Lease = (*link)(nil)
)

// link is one exec with a relay in it. It is the connection and the lease of a Connector until the exec is cut.
type link struct {
	relay  *relay.Relay
	stderr *tail.Writer
}

// reconnect makes a link to the pod. It retries until ctx ends or the pod ends; in that case the error wraps
// connector.ErrGone.
func (p *Pod) reconnect(ctx context.Context) (l *link, err error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(p.alive, func() { stop(p.endError()) })() //nolint:contextcheck // the pod's end stops it, too
	err = persist(ctx, passingExec(), func() (err error) {
		if end := p.endError(); end != nil {
			return end
		}
		if l, err = p.connect(ctx); err != nil {
			p.cfg.Logger.Debug("no link to the pod yet", "pod", p.name, "error", err)
		}
		return err
	})
	if end := p.endError(); err != nil && end != nil {
		return nil, fmt.Errorf("%w: %w", connector.ErrGone, end)
	}
	return l, err
}

// connect makes one link.
func (p *Pod) connect(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, min(linkTimeout, p.cfg.ReadyTimeout), errors.New("no answer in time"))
	defer cancel()
	l := &link{stderr: &tail.Writer{}}
	argv := []string{place.ProgramFile, "steps", "relay", "--temp-dir", place.RunDir}
	s, err := p.cluster.execute(ctx, p.name, buildName, l.stderr, argv...)
	if err != nil {
		return nil, err
	}
	l.relay, err = relay.New(ctx, s, relay.Config{Stderr: l.stderr.String, Exit: s.exit, Leftover: p.wg.Go})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Conn implements connector.Lease.
func (l *link) Conn() connector.Conn { return l }

// Release implements connector.Lease. It ends the link and its relay; everything else in the pod continues.
func (l *link) Release() { _ = l.relay.Close() } // always nil

// Relay implements connector.Conn: the relay runs already.
func (l *link) Relay(context.Context, mux.Command) (*relay.Relay, error) {
	if err := l.relay.Err(); err != nil {
		return nil, err
	}
	return l.relay, nil
}

// Start implements connector.Conn, by the relay.
func (l *link) Start(ctx context.Context, cmd mux.Command) (*mux.Process, error) {
	return l.relay.Start(ctx, cmd)
}

// DialUnix implements connector.Conn, by the relay.
func (l *link) DialUnix(ctx context.Context, path string) (*mux.Stream, error) {
	return l.relay.DialUnix(ctx, path)
}

// Reserve implements connector.Conn: a pod has no sessions.
func (*link) Reserve(context.Context, int) (*mux.Reservation, error) { return nil, errNoSessions }

// TryReserve implements connector.Conn, as Reserve.
func (*link) TryReserve(context.Context, int) (*mux.Reservation, error) { return nil, errNoSessions }

// StartSpare implements connector.Conn, as Reserve.
func (*link) StartSpare(context.Context, mux.Command) (*mux.Spare, error) { return nil, errNoSessions }

var errNoSessions = fmt.Errorf("a pod: %w", mux.ErrForbidden)
