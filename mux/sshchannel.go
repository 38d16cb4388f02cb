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

// sshChannel is one open SSH channel (RFC 4254, section 5). A goroutine opens it, answers the peer's requests, and ends
// with it.
type sshChannel struct {
	conn *Conn
	ssh  ssh.Channel
	gone chan struct{} // closed once the peer has closed the channel or the connection has ended
	lost bool          // the connection ended before the peer had closed; read after gone is closed

	exitReceived atomic.Bool   // the peer has told how its process ended, so the end of the channel is no loss
	closed       chan struct{} // closed by Close
	closeOnce    sync.Once

	exempt bool // not, or no longer, counted in Conn.channels; guarded by Conn.mu
}

// openSpec describes a channel to open, and has its hooks.
type openSpec struct {
	op    string // for errors
	kind  string // channel type
	extra []byte // its payload
	// request is called with each request of the peer, on the channel's goroutine. May be nil.
	request func(*sshChannel, *ssh.Request)
	// opened is called when the peer has confirmed the channel. closed is called exactly once: when the channel has
	// ended, or when it could not be opened (then wasOpen is false).
	opened func()
	closed func(wasOpen bool)
}

// open opens a channel. ctx bounds the wait only: a channel that the peer confirms later is closed at once. The library
// takes no context, so a goroutine waits.
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
		c.trace.ChannelOpen(kind, time.Since(start), err)
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
		// Also after an exit status: the output that may follow it would be missing.
		ch.lost = c.alive(spec.op) != nil
		spec.closed(true)
		c.trace.ChannelClose(kind)
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

// openRaw is the library's OpenChannel, with an end. OpenChannel may wait for ever if the connection ends meanwhile: it
// can add its channel to the library's list after the library has ended all channels on that list. Nothing wakes it
// then, and a Conn may leave its goroutine behind.
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
		case <-over: // the library has woken all calls that it will ever wake
			over = nil
			timer := time.NewTimer(closeSettle)
			defer timer.Stop()
			timeout = timer.C
		case <-timeout:
			return nil, nil, io.EOF
		}
	}
}

// openError returns the error for op that an error of OpenChannel stands for. A refusal keeps the library's
// *ssh.OpenChannelError in its chain; any other error means that the connection has ended.
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

// readError returns the error that an error of the library's Read stands for. The library returns io.EOF when the peer
// is done, but also when the connection has died; see closeSettle.
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
	default: // the peer is done writing and goes on reading, or the error is another
	}
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return fmt.Errorf("read: %w", err)
}

// sendError returns the error for op that an error of sending stands for.
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

// Close closes the channel and wakes calls that wait on it. It does not wait for the peer. Idempotent.
func (ch *sshChannel) Close() error {
	ch.closeOnce.Do(func() {
		close(ch.closed)
		// The library's Close writes to the connection, which a frozen peer may have filled up, so a goroutine does
		// it. A quick Close is waited for, so that closes go out in the order of their calls.
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
