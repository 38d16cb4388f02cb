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
	flight flight.Flight[*prestarted]
}

// prestarted is a process that was started before its socket's path was known.
type prestarted struct {
	*mux.Process // nil while no build has taken it from spare
	stderr       *lateWriter

	// The prestarter's:
	conn  Conn
	argv  []string
	spare *mux.Spare
}

// startOr uses ready, to which it writes input, or starts cmd if there is no such process or it has died. The end of
// the build's life wakes it from a peer that does not take the input.
func (b *build) startOr(ready *prestarted, input []byte, cmd mux.Command) (*mux.Process, error) {
	if ready != nil {
		ready.stderr.direct(cmd.Stderr)
		defer context.AfterFunc(b.life(), func() { ready.Close() })()
		if _, err := ready.Write(input); err == nil {
			return ready.Process, nil
		}
		ready.Close()
	}
	return b.starter.Start(b.life(), cmd)
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
	ready := s.remove(conn, argv, true)
	if ready != nil {
		ready.Process = ready.spare.Take()
	}
	if ready == nil || ready.Process == nil {
		return nil
	}
	return ready
}

// remove takes out the process that is ready, if there is one and it is of this command on conn, or is not.
func (s *prestarter) remove(conn Conn, argv []string, same bool) *prestarted {
	s.mu.Lock()
	defer s.mu.Unlock()
	ready, ok := s.flight.Kept()
	if !ok || same != (ready.conn == conn && slices.Equal(ready.argv, argv)) {
		return nil
	}
	s.flight.Forget()
	return ready
}

// prepare starts a process unless there is one. It waits for that, bounded by ctx.
func (s *prestarter) prepare(ctx context.Context, conn Conn, argv []string) {
	if stale := s.remove(conn, argv, false); stale != nil {
		stale.spare.Close()
	}
	// An error means that no session is to spare, or that the next build reports it.
	_, _ = s.flight.Do(ctx, func(ctx context.Context) (*prestarted, time.Duration, error) {
		ctx, cancel := context.WithTimeout(ctx, prestartTimeout)
		defer cancel()
		stderr := &lateWriter{}
		started, err := conn.StartSpare(ctx, mux.Command{Argv: argv, Stderr: stderr})
		if err == nil && ctx.Err() != nil { // the result of abandoned work is lost
			started.Close()
			err = context.Cause(ctx)
		}
		if err != nil {
			return nil, 0, err
		}
		return &prestarted{stderr: stderr, conn: conn, argv: argv, spare: started}, forever, nil
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
	vm, runner := b.c.cfg.VM, b.program.Argv()
	if b.c.linger == nil {
		serve = vm.serves.take(b.c.life, b.conn, b.c.cfg.serveArgv(runner, socketOnStdin))
	}
	if p.Bridge == Session {
		proxy = vm.proxies.take(b.c.life, b.conn, proxyArgv(runner, socketOnStdin))
	}
	return serve, proxy
}

// startProxy starts the build's proxy beside its serve, unless it was prestarted: it needs a login shell as well.
func (b *build) startProxy(proxy *prestarted) {
	b.proxy = make(chan *prestarted, 1)
	b.c.wg.Go(func() {
		defer close(b.proxy)
		if proxy == nil {
			stderr := &lateWriter{}
			argv := proxyArgv(b.program.Argv(), socketOnStdin)
			process, err := b.starter.Start(b.c.life, mux.Command{Argv: argv, Stderr: stderr})
			if err != nil {
				return // the bridge starts its own, and returns its error
			}
			proxy = &prestarted{Process: process, stderr: stderr}
		}
		b.proxy <- proxy
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
		vm, runner := b.c.cfg.VM, b.program.Argv()
		if b.c.linger == nil {
			vm.serves.prepare(b.c.deadline, b.conn, b.c.cfg.serveArgv(runner, socketOnStdin))
		}
		if b.routes().Bridge == Session {
			vm.proxies.prepare(b.c.deadline, b.conn, proxyArgv(runner, socketOnStdin))
		}
	})
}
