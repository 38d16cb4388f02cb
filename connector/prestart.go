package connector

import (
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/flight"
	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/mux"
)

const (
	// prestartDelay keeps a prestart out of the way of the build that has just started.
	prestartDelay = 10 * time.Millisecond
	// prestartTimeout bounds a prestart.
	prestartTimeout = 5 * time.Second
)

// prestarter keeps one serve, or one proxy, started for the next build on a VM where each takes a session: the login
// shell and the program's start are most of a build's start. The process waits for its socket's path on stdin. (A
// relay does the same for itself.) It uses a session only while no build waits for one, and ends with the connection.
type prestarter struct {
	mu     sync.Mutex // held to take a process out of the following
	flight flight.Flight[*spare]
}

// spare is a process that no build has taken yet.
type spare struct {
	conn   Conn
	argv   []string
	spare  *mux.Spare
	stderr *lateWriter
}

func (s *spare) is(conn Conn, argv []string) bool {
	return s.conn == conn && slices.Equal(s.argv, argv)
}

// prestarted is a process that was started before its socket's path was known.
type prestarted struct {
	*mux.Process
	stderr *lateWriter
}

// use writes the process's input, and sends its stderr to a Writer. It returns nil if there is no process, or it has
// died. The end of life wakes it from a peer that does not take the input.
func (p *prestarted) use(life context.Context, input []byte, stderr io.Writer) *mux.Process {
	if p == nil {
		return nil
	}
	p.stderr.direct(stderr)
	defer context.AfterFunc(life, func() { p.Close() })()
	if _, err := p.Write(input); err != nil {
		p.Close()
		return nil
	}
	return p.Process
}

// discard ends the process if there is one.
func (p *prestarted) discard() {
	if p != nil {
		p.Close()
	}
}

// take returns the process of this command on conn, or nil. It waits, until ctx ends, for a prestart that is under
// way: that takes no longer than another start.
func (s *prestarter) take(ctx context.Context, conn Conn, argv []string) *prestarted {
	_ = s.flight.Wait(ctx) // a process is not used once ctx has ended
	ready := s.remove(func(ready *spare) bool { return ready.is(conn, argv) })
	if ready == nil {
		return nil
	}
	process := ready.spare.Take()
	if process == nil {
		return nil
	}
	return &prestarted{process, ready.stderr}
}

// remove takes out the process that is ready, if there is one and match accepts it.
func (s *prestarter) remove(match func(*spare) bool) *spare {
	s.mu.Lock()
	defer s.mu.Unlock()
	ready, ok := s.flight.Kept()
	if !ok || !match(ready) {
		return nil
	}
	s.flight.Forget()
	return ready
}

// prepare starts a process unless there is one. It waits for that, bounded by ctx.
func (s *prestarter) prepare(ctx context.Context, conn Conn, argv []string) {
	if stale := s.remove(func(ready *spare) bool { return !ready.is(conn, argv) }); stale != nil {
		stale.spare.Close()
	}
	// An error means that no session is to spare, or that the next build reports it.
	_, _ = s.flight.Do(ctx, func(ctx context.Context) (*spare, time.Duration, error) {
		ctx, cancel := context.WithTimeout(ctx, prestartTimeout)
		defer cancel()
		stderr := &lateWriter{}
		started, err := conn.StartSpare(ctx, mux.Command{Argv: argv, Stderr: stderr})
		if err != nil {
			return nil, 0, err
		}
		return &spare{conn, argv, started, stderr}, forever, nil
	})
}

// lateWriter keeps the last lines of its text until it gets the Writer for it.
type lateWriter struct {
	mu   sync.Mutex // guards the following
	to   io.Writer
	kept []byte
}

func (w *lateWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.to == nil {
		w.kept = tail.Append(w.kept, p)
		return len(p), nil
	}
	return w.to.Write(p)
}

// direct sends the text to a Writer.
func (w *lateWriter) direct(to io.Writer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.to = to
	_, _ = to.Write(w.kept) // the next write returns the error
	w.kept = nil
}

// takePrestarted takes the prestarted processes for a build that is started by session.
func (b *build) takePrestarted(p *plan) (serve, proxy *prestarted) {
	if b.program.Kind != program.Stepmux || p.report != nil { // a probe may need two sessions at once
		return nil, nil
	}
	vm, runner := b.c.cfg.VM, b.program.Command
	serve = vm.serves.take(b.c.life, b.conn, serveArgv(runner, socketOnStdin))
	if p.Bridge == Session {
		proxy = vm.proxies.take(b.c.life, b.conn, proxyArgv(runner, socketOnStdin))
	}
	return serve, proxy
}

// startProxy starts the build's proxy beside its serve, unless it was prestarted: it needs a login shell as well.
func (b *build) startProxy(proxy *prestarted) {
	b.proxy = make(chan *prestarted, 1)
	if proxy != nil {
		b.proxy <- proxy
		close(b.proxy)
		return
	}
	b.c.wg.Go(func() {
		defer close(b.proxy)
		stderr := &lateWriter{}
		argv := proxyArgv(b.program.Command, socketOnStdin)
		process, err := b.starter.Start(b.c.life, mux.Command{Argv: argv, Stderr: stderr})
		if err == nil { // else the bridge starts its own, and returns its error
			b.proxy <- &prestarted{process, stderr}
		}
	})
}

// takeProxy returns the proxy of startProxy to its first caller, and else nil. It waits for a start that is under
// way, which ends with the build's life.
func (b *build) takeProxy() *prestarted {
	if b.proxy == nil {
		return nil
	}
	return <-b.proxy
}

// prestartNext starts, for the next build, the processes for which this one needed sessions.
func (b *build) prestartNext() {
	if b.program.Kind != program.Stepmux {
		return
	}
	b.c.wg.Go(func() {
		timer := time.NewTimer(prestartDelay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-b.c.closing:
		}
		vm, runner := b.c.cfg.VM, b.program.Command
		vm.serves.prepare(b.c.deadline, b.conn, serveArgv(runner, socketOnStdin))
		if b.routes().Bridge == Session {
			vm.proxies.prepare(b.c.deadline, b.conn, proxyArgv(runner, socketOnStdin))
		}
	})
}
