package connector

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"time"

	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux"
)

// stop closes the bridges, ends serve and waits for its end, bounded by ctx. A serve that does not end with its leash
// is ended by `steps end`, and so is a build whose serve or relay was killed.
func (b *build) stop(ctx context.Context) error {
	b.closeBridges()
	b.takeProxy().discard()
	b.giveNative()
	if b.sessions != nil {
		defer b.sessions.Release()
	}
	s, cfg := b.serve, &b.c.cfg
	if s == nil {
		return nil
	}
	begin := time.Now()
	cfg.Trace.ServeStop(cfg.BuildID)
	b.c.wg.Go(func() { _ = s.process.CloseWrite() }) // the leash; fails only if the channel is gone
	err := b.awaitServe(ctx)
	cfg.Trace.ServeGone(cfg.BuildID, time.Since(begin), err)
	s.process.Close()
	if err != nil {
		return err
	}
	lost := s.process.Err()
	_, noConn := errors.AsType[*mux.ConnError](lost)
	_, killed := errors.AsType[*mux.ExitError](lost)
	switch {
	case noConn:
		b.c.leave("unknown: the connection was lost before the step runner was seen to end")
	case mux.IsLost(lost): // the relay
		b.endByCommand(ctx, b.conn)
	case killed && s.ready.Load(): // it did not clean up
		b.endByCommand(ctx, b.starter)
	}
	return nil
}

// awaitServe waits for serve's end. After a quarter of the time it has the build ended by command: serve or its relay
// may have been stopped.
func (b *build) awaitServe(ctx context.Context) error {
	exited := b.serve.process.Exited()
	stuck := time.NewTimer(b.c.cfg.StopTimeout / 4)
	defer stuck.Stop()
	select {
	case <-exited:
		return nil
	case <-stuck.C:
		b.endByCommand(ctx, b.conn)
	case <-ctx.Done():
		b.c.leave("unknown: the step runner was not seen to end")
	}
	select {
	case <-exited:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop steps serve: it is not gone after its time: %w", context.Cause(ctx))
	}
}

// endByCommand ends what is left of the build by `steps end`, which s starts, and notes what is left then. Another step
// runner's directory is removed, its processes are unknown.
func (b *build) endByCommand(ctx context.Context, s starter) {
	dir := path.Dir(b.serve.socket)
	if b.program.Kind != program.Stepmux {
		if _, err := output(ctx, s, removeArgv(dir)); err != nil {
			b.c.leave(fmt.Sprintf("directory %s (remove it: %v)", dir, err))
		}
		return
	}
	text, err := output(ctx, s, endArgv(b.program.Argv(), b.serve.socket))
	var found wire.Leftovers
	if err == nil {
		last := text[bytes.LastIndexByte(bytes.TrimRight(text, "\n"), '\n')+1:] // a login shell may print more
		err = json.Unmarshal(last, &found)
	}
	if err != nil {
		b.c.leave(fmt.Sprintf("unknown: the VM could not be asked (steps end): %v", err))
		return
	}
	b.c.leave(found.Left...)
}

// output runs a command on the VM and returns its bounded standard output.
func output(ctx context.Context, s starter, argv []string) ([]byte, error) {
	p, err := s.Start(ctx, mux.Command{Argv: argv})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	defer context.AfterFunc(ctx, func() { p.Close() })()
	text, err := io.ReadAll(io.LimitReader(p, wire.MaxLeftovers))
	if err != nil {
		return nil, err
	}
	return text, p.Wait(ctx)
}

// leave notes what may be left of the build on the VM, and tells an operator.
func (c *Connector) leave(what ...string) {
	if len(what) == 0 {
		return
	}
	c.cfg.Logger.Warn("something of the build may be left on the VM", "left", what)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = append(c.left, what...)
}

// Left returns what may be left of the build on the VM: one text for each process or directory, or one that says why it
// is not known. It is complete once Close has returned. It is foreign text.
func (c *Connector) Left() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.left...)
}
