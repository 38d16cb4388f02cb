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
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux"
)

// stop closes the bridges, ends serve and waits for its end, bounded by ctx. If serve does not end with its leash, or
// serve or its relay was killed, `steps end` ends the rest of the build.
func (b *build) stop(ctx context.Context) error {
	if l := b.c.linger; l != nil && b.serve != nil && b.serve.ready.Load() {
		return l.stop(ctx)
	}
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
	case mux.IsLost(lost):
		b.endByCommand(ctx, b.conn, "the step runner's relay was lost")
	case killed && s.ready.Load(): // it did not clean up
		b.endByCommand(ctx, b.starter, fmt.Sprintf("the step runner ended with %v", lost))
	}
	return nil
}

// awaitServe waits for serve's end. After a third of the time it uses `steps end`: serve or its relay may have been
// stopped (SIGSTOP).
func (b *build) awaitServe(ctx context.Context) error {
	exited := b.serve.process.Exited()
	stuck := time.NewTimer(b.c.cfg.StopTimeout / 3)
	defer stuck.Stop()
	select {
	case <-exited:
		return nil
	case <-stuck.C:
		b.endByCommand(ctx, b.conn, b.c.late(b.c.cfg.StopTimeout/3))
	case <-ctx.Done():
		b.c.leave("unknown: the end of the step runner was not observed")
	}
	select {
	case <-exited:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop steps serve: it is not gone after its time: %w", context.Cause(ctx))
	}
}

// endByCommand runs `steps end`, started by s, to end the rest of the build, and notes what it reports as left. An
// older step runner does not have that command. For a step runner of another kind only the directory can be left, by
// its wrapper.
//
// why says why the step runner's own end was not seen.
func (b *build) endByCommand(ctx context.Context, s starter, why string) {
	b.c.cfg.Logger.Info("the step runner is ended by steps end", "because", why)
	b.c.mu.Lock()
	b.c.forced = why
	b.c.mu.Unlock()
	if b.program.Kind != program.Stepmux {
		b.removeDirectory(ctx, s)
		return
	}
	var found []string
	text, err := output(ctx, s, endArgv(b.program.Argv(), b.serve.socket))
	if err == nil {
		text = bytes.TrimRight(text, "\n")
		err = json.Unmarshal(text[bytes.LastIndexByte(text, '\n')+1:], &found) // a login shell may print more text before it
	}
	if err != nil {
		b.c.leave(fmt.Sprintf("unknown: steps end: %v", err))
		b.removeDirectory(ctx, s)
		return
	}
	b.c.leave(found...)
}

// removeDirectory removes the directory of a killed serve. If that fails, the next serve or relay on the VM removes
// it.
func (b *build) removeDirectory(ctx context.Context, s starter) {
	if b.serve.detached || !pause.Done(b.serve.process.Exited()) {
		return // it is in use
	}
	dir := path.Dir(b.serve.socket)
	if _, err := output(ctx, s, removeArgv(dir)); err != nil {
		b.c.leave(fmt.Sprintf("directory %s: %v", dir, err))
	}
}

// output runs a command on the VM and returns its bounded standard output.
func output(ctx context.Context, s starter, argv []string) ([]byte, error) {
	p, err := s.Start(ctx, mux.Command{Argv: argv})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	_ = p.CloseWrite() // fails only if it has ended
	defer context.AfterFunc(ctx, func() { p.Close() })()
	text, err := io.ReadAll(io.LimitReader(p, wire.MaxLeftovers))
	if err != nil {
		return nil, err
	}
	return text, p.Wait(ctx)
}

// leave notes what may be left of the build on the VM, and logs a warning for operators. In a container or a pod that
// was removed, nothing is left.
func (c *Connector) leave(what ...string) {
	place, ok := c.currentLease().(interface{ Removed() bool })
	if len(what) == 0 || ok && place.Removed() {
		return
	}
	c.cfg.Logger.Warn("something of the build may be left on the VM", "left", what)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = append(c.left, what...)
}

// late is the reason for `steps end` if a step runner has not ended after a time.
func (c *Connector) late(after time.Duration) string {
	return fmt.Sprintf("the step runner had not ended after %v: the VM may be overloaded, or it was stopped "+
		"(a longer stop timeout, now %v, gives it more time)", after.Round(100*time.Millisecond), c.cfg.StopTimeout)
}

// Forced returns why Close has ended the step runner by `steps end`: it did not see that it had ended by itself. Empty
// if it did. It is the same text for all builds with the same reason.
func (c *Connector) Forced() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.forced
}

// Left returns what may be left of the build on the VM: a text for each process or directory, or one text with the
// reason why that is unknown. It is complete once Close has returned. It is untrusted text.
func (c *Connector) Left() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.left...)
}
