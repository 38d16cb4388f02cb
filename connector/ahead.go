package connector

import (
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/stepmux/stepmux/mux"
)

const (
	// aheadDelay keeps the start of a serve ahead out of the way of the build that was started just now.
	aheadDelay = 10 * time.Millisecond
	// aheadTimeout bounds it.
	aheadTimeout = 5 * time.Second
)

// ahead keeps one serve started ahead on a VM where builds are started by session: the login shell and the start
// of the program take most of a build's start, and the next build's can begin before that build. It waits for its
// socket's path on stdin. (A relay does the same for itself.) It takes a session only while nobody waits for
// one, and ends with the connection.
type ahead struct {
	mu     sync.Mutex // guards the following
	conn   *mux.Conn  // of spare
	argv   []string   // of spare
	spare  *mux.Spare // nil: none
	stderr *laterWriter
	coming chan struct{} // not nil while one is being started; closed when that is done
}

// take returns a serve that waits, and its standard error; nil if there is none of that command on conn. It
// waits, until ctx ends, for one that is being started: that takes no longer than another would.
func (a *ahead) take(ctx context.Context, conn *mux.Conn, argv []string) (*mux.Process, *laterWriter) {
	a.mu.Lock()
	for a.coming != nil && ctx.Err() == nil {
		coming := a.coming
		a.mu.Unlock()
		select {
		case <-coming:
		case <-ctx.Done():
		}
		a.mu.Lock()
	}
	defer a.mu.Unlock()
	if a.spare == nil || a.conn != conn || !slices.Equal(a.argv, argv) {
		return nil, nil
	}
	process := a.spare.Take()
	a.spare = nil
	return process, a.stderr
}

// prepare starts a serve ahead unless there is one. It waits for that, bounded by ctx.
func (a *ahead) prepare(ctx context.Context, conn *mux.Conn, argv []string) {
	a.mu.Lock()
	if a.coming != nil || a.spare != nil && a.conn == conn && slices.Equal(a.argv, argv) {
		a.mu.Unlock()
		return
	}
	coming := make(chan struct{})
	defer close(coming)
	a.coming = coming
	a.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, aheadTimeout)
	defer cancel()
	stderr := &laterWriter{}
	spare, err := conn.StartSpare(ctx, mux.Command{Argv: argv, Stderr: stderr})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.coming = nil
	if err != nil {
		return // there is no session to spare, or the next build says what is wrong
	}
	if a.spare != nil {
		a.spare.Close()
	}
	a.conn, a.argv, a.spare, a.stderr = conn, argv, spare, stderr
}

// laterWriter keeps the end of what is written until it is told where it goes.
type laterWriter struct {
	mu   sync.Mutex // guards the following
	to   io.Writer
	kept []byte
}

func (w *laterWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.to == nil {
		w.kept = appendTail(w.kept, p)
		return len(p), nil
	}
	return w.to.Write(p)
}

// direct says where it goes.
func (w *laterWriter) direct(to io.Writer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.to = to
	_, _ = to.Write(w.kept) // what fails is told by the next
	w.kept = nil
}

// takeAhead takes a serve that was started ahead for a build that is started by session.
func (c *Connector) takeAhead() {
	if c.program.Kind == Stepmux {
		c.started, c.startedStderr = c.cfg.VM.ahead.take(c.life, c.cfg.Lease.Conn(), serveArgv(c.cfg.Runner, socketOnStdin))
	}
}

// useAhead gives the build its serve that was started ahead, nil if there is none or it has died.
func (c *Connector) useAhead(stderr io.Writer) *mux.Process {
	if c.started == nil {
		return nil
	}
	c.startedStderr.direct(stderr)
	// A peer that takes nothing holds up the write no longer than the build lives.
	defer context.AfterFunc(c.life, func() { c.started.Close() })()
	if _, err := c.started.Write(append([]byte(c.socket+"\n"), c.secret.Line()...)); err != nil {
		c.started.Close()
		return nil
	}
	return c.started
}

// prepareAhead starts a serve for the next build, once this one is served.
func (c *Connector) prepareAhead() {
	if c.program.Kind != Stepmux || c.Choice().Start != Session {
		return
	}
	c.wg.Go(func() {
		timer := time.NewTimer(aheadDelay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-c.closing:
		}
		c.cfg.VM.ahead.prepare(c.patience, c.cfg.Lease.Conn(), serveArgv(c.cfg.Runner, socketOnStdin))
	})
}
