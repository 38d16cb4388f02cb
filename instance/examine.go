package instance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance/healthcheck"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/pool"
)

// examineTimeout bounds an examination, with the connection that one may need.
const examineTimeout = 30 * time.Second

// Examine measures a VM with one command by way of its relay, or in a session if builds are started so, and compares
// the values with its Health. Outside the limits it gets no builds. A VM without a connection, or that has had no
// build, is not measured. But if it is suspect or quarantined, Examine connects to it, and so lets it take builds again
// if it answers. A VM that has refused the login, or is drained, is left alone. The error says why nothing could be
// measured; it wraps ErrUnknown for an instance that is not in the Group's set.
func (p *Provider) Examine(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, examineTimeout)
	defer cancel()
	patient, err := p.cfg.Group.patient(id)
	if err != nil {
		return err
	}
	conn := patient.conn
	switch {
	case patient.ill: // the lease keeps the connection, and so the relay
		lease, err := p.conns.Acquire(ctx, pool.Key(id))
		if err != nil {
			return err
		}
		defer lease.Release()
		conn = lease.Conn()
	case conn == nil:
		return nil
	}
	start := conn.Start
	if r := conn.Relayed(); r != nil {
		start = r.Start
	} else if patient.start != connector.Session { // it may be the only session that the server allows
		if patient.ill {
			p.cfg.Group.examined(id, nil, nil) // the next build starts a relay
		}
		return nil
	}
	if patient.Health == (healthcheck.Limits{}) {
		return nil
	}
	began := time.Now()
	text, err := outputOf(ctx, start, healthcheck.Command(cmp.Or(patient.TempDir, "/tmp")))
	if err != nil {
		return fmt.Errorf("examine instance %s: %w", id, err)
	}
	reading, err := healthcheck.Parse(text, began, time.Now())
	if err != nil {
		return fmt.Errorf("examine instance %s: %w", id, err)
	}
	p.cfg.Group.examined(id, &reading, patient.Health.Check(reading))
	return nil
}

// outputOf runs a command, and returns the beginning of its output.
func outputOf(
	ctx context.Context, start func(context.Context, mux.Command) (*mux.Process, error), argv []string,
) (string, error) {
	process, err := start(ctx, mux.Command{Argv: argv})
	if err != nil {
		return "", err
	}
	defer process.Close()
	defer context.AfterFunc(ctx, func() { _ = process.Close() })()
	_ = process.CloseWrite() // fails only if the command has ended
	text, err := io.ReadAll(io.LimitReader(process, healthcheck.MaxOutput+1))
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err == nil && len(text) <= healthcheck.MaxOutput {
		err = process.Wait(ctx)
	}
	if exit := (*mux.ExitError)(nil); errors.As(err, &exit) { // the output says enough
		err = nil
	}
	return string(text), err
}

// patient is an instance that is to be examined.
type patient struct {
	Instance
	conn  *mux.Conn       // nil if none can be used
	ill   bool            // it is suspect or quarantined, and may be connected to
	start connector.Route // of the step runners of its builds; empty before the first
}

func (g *Group) patient(id string) (p patient, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.byID[id]
	if e == nil || e.removed {
		return patient{}, unknown(id)
	}
	p.Instance, p.start = e.placement.Instance, e.placement.vm.Choice().Start
	if e.elsewhere || p.Cluster != nil || p.linux() != nil {
		return p, nil
	}
	if conn, ok := e.host.conn.(*mux.Conn); ok && conn != nil && conn.Err() == nil {
		p.conn = conn
	}
	failed := (*dialError)(nil)
	h := e.host.health
	refused := errors.As(h.suspect, &failed) && failed.permanent
	p.ill = h.reason() != nil && !refused && e.takes()
	return p, nil
}
