package connector

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/pause"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/relay"
)

// bridge is one open connection to the build's socket.
type bridge struct {
	net.Conn
	build *build
	once  sync.Once
}

// Close closes the bridge only. The Connector owns serve, so a client that reconnects does not end the build.
func (b *bridge) Close() error {
	var err error
	b.once.Do(func() {
		err = b.Conn.Close()
		cfg := &b.build.c.cfg
		cfg.Trace.BridgeClose(cfg.BuildID)
		b.build.mu.Lock()
		defer b.build.mu.Unlock()
		delete(b.build.bridges, b)
	})
	return err
}

// life is how long bridges can be opened: while the build lives and, if it lingers, until its Close has ended.
func (b *build) life() context.Context {
	if b.c.linger != nil {
		return b.c.linger.life
	}
	return b.c.life
}

// end ends the build's life.
func (b *build) end(err error) {
	b.c.end(err)
	if b.c.linger != nil {
		b.c.linger.end(err)
	}
}

// dial opens a bridge by the build's route. The first call returns the bridge that was opened early, if there is one.
func (b *build) dial() (net.Conn, error) {
	life := b.life()
	if life.Err() != nil {
		return nil, context.Cause(life)
	}
	select {
	case early := <-b.early:
		return early, nil
	default:
	}
	raw, err := b.dialRoute()
	switch {
	case err == nil:
		return b.adopt(raw)
	case life.Err() != nil:
		return nil, context.Cause(life)
	default:
		return nil, bridgeError(err)
	}
}

// adopt makes raw a bridge of the build. It closes raw if the build accepts no more bridges.
func (b *build) adopt(raw net.Conn) (net.Conn, error) {
	br := &bridge{Conn: raw, build: b}
	b.mu.Lock()
	if b.life().Err() != nil || b.c.linger == nil && pause.Done(b.c.closing) {
		b.mu.Unlock()
		raw.Close()
		return nil, ErrClosed
	}
	b.bridges[br] = struct{}{}
	b.bridged = true
	route := b.choice.Bridge
	b.mu.Unlock()
	b.c.cfg.Trace.BridgeOpen(b.c.cfg.BuildID, route)
	return br, nil
}

// keepEarly keeps a bridge for the first call of dial.
func (b *build) keepEarly(raw net.Conn) error {
	br, err := b.adopt(raw)
	if err != nil {
		return err
	}
	b.early <- br
	return nil
}

func (b *build) dialRoute() (net.Conn, error) {
	switch b.routes().Bridge {
	case Relay:
		return orNil(b.relay.DialUnix(b.life(), b.serve.socket))
	case Session:
		return orNil(b.dialSession())
	case Auto, Streamlocal:
	}
	stream, err := b.conn.DialUnix(b.life(), b.serve.socket)
	switch {
	case err == nil:
		return stream, nil
	case !isRefused(err):
		return nil, err
	case b.c.cfg.Route == Auto:
		return b.withoutStreamlocal(err)
	}
	b.mu.Lock()
	worked := b.bridged
	b.mu.Unlock()
	if !worked {
		err = fmt.Errorf("the VM refuses streamlocal forwarding (AllowStreamLocalForwarding in sshd_config; "+
			"or let the route be auto): %w", err)
		b.end(err) // another attempt would fail too
	}
	return nil, err
}

// orNil returns a nil interface on an error, not an interface that holds a nil pointer.
func orNil[T net.Conn](stream T, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	return stream, nil
}

// withoutStreamlocal bridges by the next route after streamlocal, which worked before, failed with err although serve
// still lives. Later builds do not try streamlocal.
func (b *build) withoutStreamlocal(err error) (net.Conn, error) {
	route, stream, fallbackErr := b.dialInstead()
	if fallbackErr != nil {
		return nil, errors.Join(err, fallbackErr)
	}
	reason := fmt.Sprintf("streamlocal forwarding no longer works: %v", err)
	b.giveNative()
	b.choose(route, reason)
	b.c.cfg.VM.streamlocal.Set(capability{false, reason}, forever)
	return stream, nil
}

// dialInstead bridges by the route after streamlocal, and checks that the other end is serve.
func (b *build) dialInstead() (Route, net.Conn, error) {
	if b.relay != nil && !b.c.moved {
		stream, err := orNil(b.relay.DialUnix(b.life(), b.serve.socket))
		return Relay, stream, err
	}
	bridge, err := b.dialSession()
	if err != nil {
		return Session, nil, err
	}
	// serve's gRPC server sends first. If no greeting arrives, the bridge does not reach serve.
	defer context.AfterFunc(b.life(), func() { bridge.Close() })()
	tooLong := time.AfterFunc(b.c.cfg.ReadyTimeout, func() { bridge.Close() })
	_, err = bridge.Read(nil)
	if !tooLong.Stop() {
		err = fmt.Errorf("no answer within %v", b.c.cfg.ReadyTimeout)
	}
	if err != nil {
		bridge.Close()
		return Session, nil, err
	}
	return Session, bridge, nil
}

// dialSession bridges by `steps proxy` in a session.
func (b *build) dialSession() (*proxyBridge, error) {
	stderr := &tail.Writer{}
	cmd := mux.Command{Argv: proxyArgv(b.program.Argv(), b.serve.socket), Stderr: stderr}
	process, err := b.startOr(b.takeProxy(), []byte(b.serve.socket+"\n"), cmd)
	if err != nil {
		return nil, err
	}
	from := bufio.NewReaderSize(process, 16) // the smallest size that bufio has
	return &proxyBridge{Process: process, from: from, stderr: stderr, build: b}, nil
}

// closeBridges closes the open bridges and forbids new ones: the build ends, or has moved to another link.
func (b *build) closeBridges() {
	b.mu.Lock()
	open := maps.Clone(b.bridges)
	b.mu.Unlock()
	for br := range open {
		_ = br.Close() // fails only if the channel was gone already
	}
}

// isRefused reports whether err means that the server refused a channel, as opposed to a lost connection or an ended
// wait. OpenSSH gives the same answer for a missing socket and for forbidden forwarding, so a refusal says something
// about the VM only if the socket is known to exist.
func isRefused(err error) bool {
	_, refused := errors.AsType[*ssh.OpenChannelError](err)
	return refused
}

// http2Header is the length of an HTTP/2 frame header. http2Settings is the rest of that header, after the 3 bytes of
// length, of the SETTINGS frame with which a gRPC server begins (RFC 9113, section 6.5).
const http2Header = 9

var http2Settings = []byte{4, 0, 0, 0, 0, 0}

// proxyBridge is a bridge by `steps proxy`. A login shell that prints text prints it into the bridge. The first Read
// detects that and returns an error that says so, before gRPC fails on it.
type proxyBridge struct {
	*mux.Process
	from    *bufio.Reader // of the process; its buffer is used for the first frame header only
	stderr  *tail.Writer
	build   *build
	checked bool // the first frame header has been checked
}

// Read reads from the socket.
func (b *proxyBridge) Read(p []byte) (n int, err error) {
	if !b.checked {
		b.checked = true
		if err := b.checkHead(); err != nil {
			return 0, err
		}
	}
	if n, err = b.from.Read(p); errors.Is(err, io.EOF) && b.stderr.String() != "" {
		err = fmt.Errorf("steps proxy ended: %s", b.stderr.String())
	}
	return n, err
}

// checkHead checks the first frame header.
func (b *proxyBridge) checkHead() error {
	head, err := b.from.Peek(http2Header)
	switch said := b.stderr.String(); {
	case mux.IsLost(err):
		return err
	case errors.Is(err, io.EOF) && len(head) > 0:
		return fmt.Errorf("the VM's login shell printed %q instead of starting steps proxy: %s", head, said)
	case errors.Is(err, io.EOF):
		return b.notBegun(err)
	case err != nil:
		return err
	case head[0] != 0 || !bytes.Equal(head[3:], http2Settings): // the frame is short
		err = fmt.Errorf("the VM's login shell prints text into the bridge, beginning %q: let its start-up "+
			"files be silent when no terminal is there (or allow streamlocal forwarding)", head)
		b.build.end(err) // another bridge would fail too
		return err
	}
	return nil
}

// notBegun returns the error of a proxy that ended without a byte. If the proxy reports that nothing listens on the
// socket, the step runner is gone, and a lingering build is lost.
func (b *proxyBridge) notBegun(eof error) error {
	err := eof
	if said := b.stderr.String(); said != "" {
		err = fmt.Errorf("steps proxy ended: %s", said)
	}
	l := b.build.c.linger
	if l == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(b.build.life(), b.build.c.cfg.ReadyTimeout)
	defer cancel()
	if mux.ExitCode(b.Wait(ctx)) != wire.ProxyNotFound {
		return err
	}
	return l.check(&relay.RefusedError{Op: "connect to the step runner", Reason: relay.RefusedNotFound, Text: err.Error()})
}
