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
	// prestartDelay keeps a prestart from slowing down the build that has just started.
	prestartDelay = 10 * time.Millisecond
	// prestartTimeout bounds a prestart.
	prestartTimeout = 5 * time.Second
)

// prestarter keeps one serve, or one proxy, started for the next build on a VM where each uses a session: login shell
// and program start are the largest part of a build's start. The process waits on stdin for its socket's path. (A
// relay prestarts by itself.) It uses a session only while no build waits for one, and ends with the connection.
type prestarter struct {
	mu     sync.Mutex // held to take the process out of the fields below
	flight flight.Flight[*prestarted]
}

// prestarted is a process that was started before the path of its socket was known.
type prestarted struct {
	*mux.Process // nil until a build takes it out of spare
	stderr       *lateWriter

	// The prestarter's:
	conn  Conn
	argv  []string
	spare *mux.Spare
}

// startOr uses ready, and writes input to it. It starts cmd if ready is nil or has died. The end of the build's life
// stops a write that the peer does not accept.
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

// discard ends the process. It does nothing if p is nil.
func (p *prestarted) discard() {
	if p != nil {
		p.Close()
	}
}

// take returns the process of this command on conn, or nil. If a prestart is under way it waits for that, until ctx
// ends: a new start would take as long.
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

// remove takes out the ready process if, with same set, it is of this command on conn, or, without same, if it is
// not.
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

// prepare starts a process unless there is one already. It waits for the start, bounded by ctx.
func (s *prestarter) prepare(ctx context.Context, conn Conn, argv []string) {
	if stale := s.remove(conn, argv, false); stale != nil {
		stale.spare.Close()
	}
	// An error means that no session is free, or is one that the next build will report.
	_, _ = s.flight.Do(ctx, func(ctx context.Context) (*prestarted, time.Duration, error) {
		ctx, cancel := context.WithTimeout(ctx, prestartTimeout)
		defer cancel()
		stderr := &lateWriter{}
		started, err := conn.StartSpare(ctx, mux.Command{Argv: argv, Stderr: stderr})
		if err == nil && ctx.Err() != nil { // a Flight drops the result of work that was given up
			started.Close()
			err = context.Cause(ctx)
		}
		if err != nil {
			return nil, 0, err
		}
		return &prestarted{stderr: stderr, conn: conn, argv: argv, spare: started}, forever, nil
	})
}

// lateWriter keeps the last lines of its text until it is given a Writer.
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

// direct sends the text kept so far, and all later text, to a Writer.
func (w *lateWriter) direct(to io.Writer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.to = to
	_, _ = to.Write(w.kept) // a later write returns the error
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

// startProxy starts the build's proxy at the same time as its serve, because it too needs a login shell. It does
// nothing if a proxy was prestarted.
func (b *build) startProxy(proxy *prestarted) {
	b.proxy = make(chan *prestarted, 1)
	b.c.wg.Go(func() {
		defer close(b.proxy)
		if proxy == nil {
			stderr := &lateWriter{}
			argv := proxyArgv(b.program.Argv(), socketOnStdin)
			process, err := b.starter.Start(b.c.life, mux.Command{Argv: argv, Stderr: stderr})
			if err != nil {
				return // dial starts its own proxy then, and returns its error
			}
			proxy = &prestarted{Process: process, stderr: stderr}
		}
		b.proxy <- proxy
	})
}

// takeProxy returns the proxy of startProxy to its first caller and nil to later ones. It waits for a start that is
// under way; the end of the build's life ends the wait.
func (b *build) takeProxy() *prestarted {
	if b.proxy == nil {
		return nil
	}
	return <-b.proxy
}

// prestartNext prestarts, for the next build, the processes for which this build needed sessions.
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
