package mux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/mux/channel"
)

// sshChannel is one open SSH channel (RFC 4254, section 5). Its goroutine opened it, answers the peer's
// requests, and ends with it.
type sshChannel struct {
	conn *Conn
	ssh  ssh.Channel
	gone chan struct{} // closed once the peer has closed the channel or the connection has ended
	lost bool          // the connection ended before the peer had closed; read after gone is closed

	exitReceived atomic.Bool   // the peer said how its process ended: what ends now ends well
	closed       chan struct{} // closed by Close
	closeOnce    sync.Once

	exempt bool // from Conn.channels, or no more counted; guarded by Conn.mu
}

// openSpec says what to open and whom to tell.
type openSpec struct {
	op    string // for errors
	kind  string // channel type
	extra []byte // its payload
	// request is told each request of the peer, on the channel's goroutine. May be nil.
	request func(*sshChannel, *ssh.Request)
	// opened is called when the peer has confirmed the channel. closed is called exactly once, whatever
	// happens: when the channel is no more, or when it will never be (then wasOpen is false).
	opened func()
	closed func(wasOpen bool)
}

// open opens a channel. ctx bounds the wait only: a channel that the peer confirms after that is
// closed at once. The library has no context for this, hence the goroutine.
func (c *Conn) open(ctx context.Context, spec openSpec) (*sshChannel, error) {
	if err := c.begin(spec.op); err != nil {
		spec.closed(false)
		return nil, err
	}
	var (
		confirmed = make(chan *sshChannel)
		failed    = make(chan error, 1)
		abandoned = make(chan struct{})
	)
	go func() {
		var ch *sshChannel
		defer func() { c.finish(ch) }()
		kind, start := channelKind(spec.kind), time.Now()
		raw, reqs, err := c.openRaw(spec.kind, spec.extra)
		c.trace.channelOpen(kind, time.Since(start), err)
		if err != nil {
			spec.closed(false)
			failed <- err
			return
		}
		spec.opened()
		ch = &sshChannel{conn: c, ssh: raw, gone: make(chan struct{}), closed: make(chan struct{})}
		select {
		case confirmed <- ch:
		case <-abandoned:
			ch.Close()
		}
		for req := range reqs {
			if spec.request != nil {
				spec.request(ch, req)
			}
			if req.WantReply {
				_ = req.Reply(false, nil) // an error means the channel is ending
			}
		}
		if !ch.exitReceived.Load() {
			c.settle(c.done)
		}
		if isDone(c.over) {
			<-c.done // soon
		}
		// Also after an exit status: output may follow it, and would be missing.
		ch.lost = c.alive(spec.op) != nil
		spec.closed(true)
		c.trace.channelClose(kind)
		close(ch.gone)
	}()
	select {
	case ch := <-confirmed:
		return ch, nil
	case err := <-failed:
		return nil, c.openError(spec.op, err)
	case <-ctx.Done():
		close(abandoned)
		return nil, fmt.Errorf("%s: %w", spec.op, context.Cause(ctx))
	}
}

// openRaw is the library's OpenChannel, which may wait for ever when the connection ends while it is called: it
// can add its channel to the library's list after all on that list were told of the end. Nothing wakes it then;
// its goroutine is the one thing that a Conn may leave behind.
func (c *Conn) openRaw(kind string, extra []byte) (ssh.Channel, <-chan *ssh.Request, error) {
	type opened struct {
		ch   ssh.Channel
		reqs <-chan *ssh.Request
		err  error
	}
	answer := make(chan opened, 1)
	go func() {
		ch, reqs, err := c.ssh.OpenChannel(kind, extra)
		answer <- opened{ch, reqs, err}
	}()
	var timeout <-chan time.Time
	over := c.over
	for {
		select {
		case o := <-answer:
			return o.ch, o.reqs, o.err
		case <-over: // whoever is to be woken has been
			over = nil
			timer := time.NewTimer(closeSettle)
			defer timer.Stop()
			timeout = timer.C
		case <-timeout:
			return nil, nil, io.EOF
		}
	}
}

// openError says why a channel was not opened. A refusal keeps the library's *ssh.OpenChannelError
// in its chain; without one the connection must be gone.
func (c *Conn) openError(op string, err error) error {
	refusal := (*ssh.OpenChannelError)(nil)
	err = shorten(err)
	switch {
	case !errors.As(err, &refusal):
		c.settle(c.done)
		if isDone(c.over) {
			<-c.done // soon
		}
		if lost := c.alive(op); lost != nil {
			return lost
		}
		return fmt.Errorf("%s: %w", op, err)
	case refusal.Reason == ssh.Prohibited || refusal.Reason == ssh.UnknownChannelType:
		return fmt.Errorf("%s: %w: %w", op, ErrForbidden, err)
	default:
		return fmt.Errorf("%s: %w", op, err)
	}
}

// settle waits until done is closed, but only for a moment.
func (c *Conn) settle(done <-chan struct{}) {
	select {
	case <-done:
		return
	default:
	}
	timer := time.NewTimer(closeSettle)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// readError says what an error of the library's Read means here. It says io.EOF when the peer is done,
// but also when the connection has died; see closeSettle.
func (ch *sshChannel) readError(err error) error {
	if ch.exitReceived.Load() && errors.Is(err, io.EOF) && ch.conn.alive("read") == nil {
		return io.EOF
	}
	ch.conn.settle(ch.gone)
	select {
	case <-ch.gone:
		if !ch.lost {
			break
		}
		return ch.conn.ended("read")
	default: // the peer is done writing and goes on reading, or this cannot go on
	}
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return fmt.Errorf("read: %w", err)
}

// sendError says why something could not be sent.
func (ch *sshChannel) sendError(op string, err error) error {
	if errors.Is(err, channel.ErrStopped) {
		return err
	}
	if lost := ch.conn.alive(op); lost != nil {
		return lost
	}
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: the other end has closed: %w", op, io.ErrClosedPipe)
	}
	return fmt.Errorf("%s: %w", op, err)
}

// Close closes the channel and wakes what waits on it; it does not wait for the peer. Idempotent.
func (ch *sshChannel) Close() error {
	ch.closeOnce.Do(func() {
		close(ch.closed)
		// The library's Close writes to the connection, which a frozen peer may have filled up. So that
		// closes go out in the order they are made, it is waited for where it is quick.
		sent := make(chan struct{})
		if ch.conn.spawn(func() {
			defer close(sent)
			_ = ch.ssh.Close() // an error means the peer or the connection was first
		}) {
			ch.conn.settle(sent)
		}
	})
	return nil
}
