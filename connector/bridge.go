package connector

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/mux"

	"golang.org/x/crypto/ssh"
)

// bridge is one open way to the build's socket.
type bridge struct {
	io.ReadWriteCloser
	owner *Connector
	once  sync.Once
}

// Close closes the bridge, and nothing else: serve is the Connector's, so a client that connects
// anew does not end the build.
func (b *bridge) Close() error {
	var err error
	b.once.Do(func() {
		err = b.ReadWriteCloser.Close()
		b.owner.cfg.Trace.bridgeClose(b.owner.cfg.BuildID)
		b.owner.mu.Lock()
		delete(b.owner.bridges, b)
		b.owner.mu.Unlock()
	})
	return err
}

// dial opens a bridge by the build's route, or hands out the one that is open already.
func (c *Connector) dial() (io.ReadWriteCloser, error) {
	if c.life.Err() != nil {
		return nil, context.Cause(c.life)
	}
	c.mu.Lock()
	early := c.early
	c.early = nil
	c.mu.Unlock()
	if early != nil {
		return early, nil
	}
	raw, err := c.dialRoute()
	if err != nil {
		if c.life.Err() != nil {
			return nil, context.Cause(c.life)
		}
		return nil, fmt.Errorf("bridge to the step runner: %w", err)
	}
	return c.adopt(raw)
}

// adopt makes raw a bridge of the build, or closes it.
func (c *Connector) adopt(raw io.ReadWriteCloser) (*bridge, error) {
	b := &bridge{ReadWriteCloser: raw, owner: c}
	c.mu.Lock()
	select {
	case <-c.closing:
		c.mu.Unlock()
		raw.Close()
		return nil, ErrClosed
	default:
	}
	c.bridges[b] = struct{}{}
	c.bridged = true
	route := c.choice.Bridge
	c.mu.Unlock()
	c.cfg.Trace.bridgeOpen(c.cfg.BuildID, route)
	return b, nil
}

func (c *Connector) dialRoute() (io.ReadWriteCloser, error) {
	switch c.Choice().Bridge {
	case Session:
		bridge, err := c.dialSession()
		if err != nil {
			return nil, err
		}
		return bridge, nil
	case Relay:
		return c.relay.DialUnix(c.life, c.listening())
	case Auto, Streamlocal:
	}
	stream, err := c.cfg.Lease.Conn().DialUnix(c.life, c.listening())
	if err == nil {
		return stream, nil
	}
	if !isUnreachable(err) {
		return nil, err
	}
	if c.cfg.Route != Auto {
		c.mu.Lock()
		worked := c.bridged
		c.mu.Unlock()
		if !worked {
			err = fmt.Errorf("the VM refuses streamlocal forwarding (AllowStreamLocalForwarding in sshd_config; or let the route be auto): %w", err)
			c.end(err) // another try would fare no better
		}
		return nil, err
	}
	return c.withoutStreamlocal(err)
}

// withoutStreamlocal bridges by the next route when streamlocal, which worked before, failed with err
// though serve still lives. Builds to come shall not trip over it too.
func (c *Connector) withoutStreamlocal(err error) (io.ReadWriteCloser, error) {
	route, stream, fallbackErr := c.dialInstead()
	if fallbackErr != nil {
		return nil, errors.Join(err, fallbackErr)
	}
	reason := fmt.Sprintf("streamlocal forwarding no longer works: %v", err)
	c.giveNative()
	c.choose(route, reason)
	c.cfg.VM.judgeStreamlocal(false, reason)
	return stream, nil
}

// dialInstead bridges by the route that comes after streamlocal, and sees that serve is at its other end.
func (c *Connector) dialInstead() (Route, io.ReadWriteCloser, error) {
	if c.relay != nil {
		stream, err := c.relay.DialUnix(c.life, c.listening())
		return Relay, stream, err
	}
	bridge, err := c.dialSession()
	if err != nil {
		return Session, nil, err
	}
	// The gRPC server greets. A bridge by which it does not is of no use.
	defer context.AfterFunc(c.life, func() { bridge.Close() })()
	tooLong := time.AfterFunc(c.cfg.ReadyTimeout, func() { bridge.Close() })
	_, err = bridge.Read(nil)
	if !tooLong.Stop() {
		err = errNoAnswer(c.cfg.ReadyTimeout)
	}
	if err != nil {
		bridge.Close()
		return Session, nil, err
	}
	return Session, bridge, nil
}

// dialSession bridges by `steps proxy` in a session.
func (c *Connector) dialSession() (*proxyBridge, error) {
	stderr := &tail.Writer{}
	process := c.takeProxy().use(c.life, []byte(c.listening()+"\n"), stderr)
	if process == nil {
		var err error
		process, err = c.starter.Start(c.life, mux.Command{Argv: proxyArgv(c.cfg.Runner, c.listening()), Stderr: stderr})
		if err != nil {
			return nil, err
		}
	}
	return &proxyBridge{Process: process, stderr: stderr, fatal: c.end}, nil
}

// closeBridges closes what bridges are open. No new ones come: closing is closed.
func (c *Connector) closeBridges() {
	c.mu.Lock()
	open := make([]*bridge, 0, len(c.bridges))
	for b := range c.bridges {
		open = append(open, b)
	}
	c.mu.Unlock()
	for _, b := range open {
		_ = b.Close() // an error means the channel was gone already
	}
}

// isUnreachable reports whether err is the server's refusal of a channel, as opposed to a lost
// connection or an ended wait. OpenSSH gives one answer for a socket that is missing and for
// forwarding that is forbidden, so this counts as a verdict on the VM only where the socket is known
// to be there.
func isUnreachable(err error) bool {
	refusal := (*ssh.OpenChannelError)(nil)
	return errors.As(err, &refusal)
}

// http2Start is how a gRPC server greets: an HTTP/2 SETTINGS frame on stream 0 (RFC 9113, section
// 6.5), of which the first byte is the high one of a small length.
var http2Start = struct {
	length int // of the frame header
	tail   []byte
}{9, []byte{4, 0, 0, 0, 0, 0}}

// proxyBridge is a bridge by `steps proxy`. A login shell that prints something does so into the
// bridge; its first read finds that, and says so instead of letting gRPC stumble over it.
type proxyBridge struct {
	*mux.Process
	stderr *tail.Writer
	fatal  context.CancelCauseFunc // ends the build
	head   []byte                  // what was read of the frame header and not yet returned
	read   int                     // bytes of the frame header checked
}

// Read reads from the socket.
func (b *proxyBridge) Read(p []byte) (int, error) {
	if b.read == 0 {
		b.head = make([]byte, http2Start.length)
		n, err := io.ReadFull(b.Process, b.head)
		b.read, b.head = 1, b.head[:n]
		if err != nil {
			return 0, b.readError(err)
		}
		if b.head[0] != 0 || !bytes.Equal(b.head[3:], http2Start.tail) {
			err := fmt.Errorf("the VM's login shell prints text into the bridge, beginning %s: "+
				"let its start-up files be silent when no terminal is there (or allow streamlocal forwarding)", prefix(b.head))
			b.fatal(err) // another bridge would fare no better
			return 0, err
		}
	}
	if len(b.head) > 0 {
		n := copy(p, b.head)
		b.head = b.head[n:]
		return n, nil
	}
	n, err := b.Process.Read(p)
	if err != nil {
		err = b.readError(err)
	}
	return n, err
}

// readError adds to an end of the bridge what proxy said on its way out.
func (b *proxyBridge) readError(err error) error {
	said := b.stderr.String()
	switch {
	case isLost(err):
		return err
	case errors.Is(err, io.ErrUnexpectedEOF) && len(b.head) > 0:
		return fmt.Errorf("the VM's login shell printed %s instead of starting steps proxy: %s", prefix(b.head), said)
	case errors.Is(err, io.EOF) && said != "":
		return fmt.Errorf("steps proxy ended: %s", said)
	default:
		return err
	}
}
