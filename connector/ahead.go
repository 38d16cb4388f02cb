package connector

import (
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/mux"
)

const (
	// aheadDelay keeps the start of a serve ahead out of the way of the build that was started just now.
	aheadDelay = 10 * time.Millisecond
	// aheadTimeout bounds it.
	aheadTimeout = 5 * time.Second
)

// ahead keeps one serve, or one proxy, started ahead on a VM where builds take sessions for them: the login shell and
// the start of the program take most of a build's start, and the next build's can begin before that build. It waits
// for its socket's path on stdin. (A relay does the same for itself.) It takes a session only while nobody waits for
// one, and ends with the connection.
type ahead struct {
	mu     sync.Mutex // guards the following
	conn   *mux.Conn  // of spare
	argv   []string   // of spare
	spare  *mux.Spare // nil: none
	stderr *laterWriter
	coming chan struct{} // not nil while one is being started; closed when that is done
}

// headStart is a process that was started ahead and is a build's now.
type headStart struct {
	*mux.Process
	stderr *laterWriter
}

// use tells the process what it waits for on its stdin, and where its stderr goes. It returns nil if there is no
// process, or it has died. A peer that takes nothing holds up no longer than life lasts.
func (h *headStart) use(life context.Context, input []byte, stderr io.Writer) *mux.Process {
	if h == nil {
		return nil
	}
	h.stderr.direct(stderr)
	defer context.AfterFunc(life, func() { h.Close() })()
	if _, err := h.Write(input); err != nil {
		h.Close()
		return nil
	}
	return h.Process
}

// giveUp ends the process if there is one.
func (h *headStart) giveUp() {
	if h != nil {
		h.Close()
	}
}

// take returns a process that waits; nil if there is none of that command on conn. It waits, until ctx ends, for
// one that is being started: that takes no longer than another would.
func (a *ahead) take(ctx context.Context, conn *mux.Conn, argv []string) *headStart {
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
		return nil
	}
	process := a.spare.Take()
	a.spare = nil
	if process == nil {
		return nil
	}
	return &headStart{process, a.stderr}
}

// prepare starts a process ahead unless there is one. It waits for that, bounded by ctx.
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
		w.kept = tail.Append(w.kept, p)
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

// takeAhead takes what was started ahead for a build that is started by session and bridged by route. It returns
// how many sessions the build has by that.
func (c *Connector) takeAhead(route Route) (held int) {
	if c.program.Kind != Stepmux {
		return 0
	}
	vm, conn := c.cfg.VM, c.cfg.Lease.Conn()
	if c.serveAhead = vm.serves.take(c.life, conn, serveArgv(c.cfg.Runner, socketOnStdin)); c.serveAhead != nil {
		held++
	}
	if route != Session {
		return held
	}
	proxy := vm.proxies.take(c.life, conn, proxyArgv(c.cfg.Runner, socketOnStdin))
	if proxy == nil {
		return held
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.proxyAhead = proxy
	return held + 1
}

// startProxy starts the proxy of a build beside its serve, where none was started ahead: it takes a login shell as
// well. It waits for the socket's path.
func (c *Connector) startProxy() {
	coming := make(chan struct{})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.coming = coming
	starter := c.starter
	c.wg.Go(func() {
		defer close(coming)
		stderr := &laterWriter{}
		process, err := starter.Start(c.life, mux.Command{Argv: proxyArgv(c.cfg.Runner, socketOnStdin), Stderr: stderr})
		if err != nil {
			return // the bridge starts its own, and says what is wrong
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.proxyAhead = &headStart{process, stderr}
	})
}

// takeProxy returns the proxy that was started ahead, once; nil if there is none. It waits for one that is being
// started, which ends with the build's life.
func (c *Connector) takeProxy() *headStart {
	c.mu.Lock()
	defer c.mu.Unlock()
	if coming := c.coming; coming != nil {
		c.mu.Unlock()
		<-coming
		c.mu.Lock()
	}
	proxy := c.proxyAhead
	c.proxyAhead = nil
	return proxy
}

// giveUpAhead ends what was started ahead and the build has not used.
func (c *Connector) giveUpAhead() {
	c.serveAhead.giveUp()
	c.serveAhead = nil
	c.takeProxy().giveUp()
}

// useAhead gives the build its serve that was started ahead, nil if there is none or it has died.
func (c *Connector) useAhead(stderr io.Writer) *mux.Process {
	serve := c.serveAhead
	c.serveAhead = nil
	return serve.use(c.life, append([]byte(c.socket+"\n"), c.secret.Line()...), stderr)
}

// prepareAhead starts for the next build what this one, which is served, took sessions for.
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
		vm, conn := c.cfg.VM, c.cfg.Lease.Conn()
		vm.serves.prepare(c.patience, conn, serveArgv(c.cfg.Runner, socketOnStdin))
		if c.Choice().Bridge == Session {
			vm.proxies.prepare(c.patience, conn, proxyArgv(c.cfg.Runner, socketOnStdin))
		}
	})
}
