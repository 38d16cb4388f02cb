package connector

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/mux"
)

// bridge is one open way to the build's socket.
type bridge struct {
	net.Conn
	build *build
	once  sync.Once
}

// Close closes the bridge, and nothing else: the Connector owns serve, so a client that connects
// anew does not end the build.
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

// dial opens a bridge by the build's route, or returns the early one.
func (b *build) dial() (net.Conn, error) {
	life := b.c.life
	if life.Err() != nil {
		return nil, context.Cause(life)
	}
	select {
	case early := <-b.early:
		return early, nil
	default:
	}
	raw, err := b.dialRoute()
	if err != nil {
		if life.Err() != nil {
			return nil, context.Cause(life)
		}
		return nil, bridgeError(err)
	}
	return orNil(b.adopt(raw))
}

// adopt makes raw a bridge of the build, or closes it.
func (b *build) adopt(raw net.Conn) (*bridge, error) {
	br := &bridge{Conn: raw, build: b}
	b.mu.Lock()
	if isDone(b.c.closing) {
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
	route := b.routes().Bridge
	if route != Streamlocal {
		return b.dialBy(route)
	}
	stream, err := b.conn.DialUnix(b.c.life, b.serve.socket)
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
		b.c.end(err) // another attempt would fail too
	}
	return nil, err
}

// dialBy opens a bridge by relay or session.
func (b *build) dialBy(route Route) (net.Conn, error) {
	if route == Relay {
		return orNil(b.relay.DialUnix(b.c.life, b.serve.socket))
	}
	return orNil(b.dialSession())
}

// orNil returns a nil interface with an error.
func orNil[T net.Conn](stream T, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	return stream, nil
}

// withoutStreamlocal bridges by the next route when streamlocal, which worked before, failed with err
// though serve still lives. Later builds do not try it.
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

// dialInstead bridges by the route that comes after streamlocal, and checks that serve is at its other end.
func (b *build) dialInstead() (Route, net.Conn, error) {
	if b.relay != nil {
		stream, err := b.dialBy(Relay)
		return Relay, stream, err
	}
	bridge, err := b.dialSession()
	if err != nil {
		return Session, nil, err
	}
	// serve's gRPC server sends first. A bridge without its greeting does not reach serve.
	defer context.AfterFunc(b.c.life, func() { bridge.Close() })()
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
	process := b.takeProxy().use(b.c.life, []byte(b.serve.socket+"\n"), stderr)
	if process == nil {
		var err error
		argv := proxyArgv(b.program.Command, b.serve.socket)
		if process, err = b.starter.Start(b.c.life, mux.Command{Argv: argv, Stderr: stderr}); err != nil {
			return nil, err
		}
	}
	return &proxyBridge{Process: process, stderr: stderr, fatal: b.c.end}, nil
}

// closeBridges closes the open bridges. No new ones come: closing is closed.
func (b *build) closeBridges() {
	b.mu.Lock()
	open := make([]*bridge, 0, len(b.bridges))
	for br := range b.bridges {
		open = append(open, br)
	}
	b.mu.Unlock()
	for _, br := range open {
		_ = br.Close() // fails only if the channel was gone already
	}
}

// isRefused reports whether err is the server's refusal of a channel, and not a lost connection or an ended wait.
// OpenSSH gives one answer for a socket that is missing and for forwarding that is forbidden, so it says something
// about the VM only if the socket is known to be there.
func isRefused(err error) bool {
	refusal := (*ssh.OpenChannelError)(nil)
	return errors.As(err, &refusal)
}

// http2Header is the length of an HTTP/2 frame header. http2Settings are its bytes behind the frame's length for the
// SETTINGS frame on stream 0 with which a gRPC server begins (RFC 9113, section 6.5).
const http2Header = 9

var http2Settings = []byte{4, 0, 0, 0, 0, 0}

// proxyBridge is a bridge by `steps proxy`. A login shell that prints text does so into the bridge; the first read
// finds that and returns an error that says so, before gRPC fails on it.
type proxyBridge struct {
	*mux.Process
	stderr  *tail.Writer
	fatal   context.CancelCauseFunc // ends the build
	checked bool                    // the first frame header was read
	head    []byte                  // the part of it that Read has not returned yet
}

// Read reads from the socket.
func (b *proxyBridge) Read(p []byte) (n int, err error) {
	if !b.checked {
		b.checked = true
		if b.head, err = b.readHead(); err != nil {
			return 0, err
		}
	}
	if len(b.head) > 0 {
		n = copy(p, b.head)
		b.head = b.head[n:]
		return n, nil
	}
	if n, err = b.Process.Read(p); errors.Is(err, io.EOF) && b.stderr.String() != "" {
		err = fmt.Errorf("steps proxy ended: %s", b.stderr.String())
	}
	return n, err
}

// readHead reads the first frame header.
func (b *proxyBridge) readHead() ([]byte, error) {
	head := make([]byte, http2Header)
	n, err := io.ReadFull(b.Process, head)
	switch said := b.stderr.String(); {
	case mux.IsLost(err):
		return nil, err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("the VM's login shell printed %q instead of starting steps proxy: %s", head[:n], said)
	case errors.Is(err, io.EOF) && said != "":
		return nil, fmt.Errorf("steps proxy ended: %s", said)
	case err != nil:
		return nil, err
	case head[0] != 0 || !bytes.Equal(head[3:], http2Settings): // the frame is short
		err = fmt.Errorf("the VM's login shell prints text into the bridge, beginning %q: let its start-up "+
			"files be silent when no terminal is there (or allow streamlocal forwarding)", head)
		b.fatal(err) // another bridge would fail too
		return nil, err
	}
	return head, nil
}
