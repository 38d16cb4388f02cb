package mux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stepmux/stepmux/internal/pause"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/mux/channel"
)

// maxSignal bounds the name of a signal.
const maxSignal = 32

// sshChannel is one open SSH channel (RFC 4254, section 5). A goroutine opens it, answers the peer's requests, and ends
// with it.
type sshChannel struct {
	conn *Conn
	ssh  ssh.Channel
	gone chan struct{} // closed once the peer has closed the channel or the connection has ended
	lost bool          // the connection ended before the peer closed the channel; read after gone is closed
	exit *ExitError    // the end of its process as the server reported it, nil if it has not; read after gone is closed

	exitReceived atomic.Bool   // the peer has reported how its process ended, so the end of the channel is no loss
	leave        atomic.Int64  // the Command.Leave of its process
	closed       chan struct{} // closed by Close
	closeOnce    sync.Once

	exempt bool // not, or no longer, counted in Conn.channels; guarded by Conn.mu
}

// open opens a channel, for which the caller has taken a slot of the budget. The slot is freed when the channel has
// ended or could not be opened. ctx bounds the wait only: if the peer confirms a channel later, it is closed at once.
// The library takes no context, so a goroutine waits.
func (c *Conn) open(ctx context.Context, op, kind string, extra []byte, slots *budget) (*sshChannel, error) {
	if err := c.count(op); err != nil {
		slots.closed(false)
		return nil, err
	}
	var (
		confirmed = make(chan *sshChannel)
		failed    = make(chan error, 1)
		abandoned = make(chan struct{})
	)
	spawned := c.spawn(func() { //nolint:contextcheck // ctx bounds the wait only
		start := time.Now()
		raw, reqs, err := c.ssh.OpenChannel(kind, extra)
		c.trace.ChannelOpen(channelKinds[kind], time.Since(start), err)
		if err != nil {
			c.uncount(1)
			slots.closed(false)
			failed <- err
			return
		}
		slots.opened()
		ch := &sshChannel{conn: c, ssh: raw, gone: make(chan struct{}), closed: make(chan struct{})}
		select {
		case confirmed <- ch:
		case <-abandoned:
			ch.Close()
		}
		ch.serve(kind, reqs)
		if !ch.exitReceived.Load() {
			c.confirm(context.Background())
		}
		if pause.Done(c.over) {
			<-c.done // soon
		}
		// Even if an exit status has arrived: output that follows it may be missing.
		ch.lost = c.ended(op) != nil
		slots.closed(true)
		c.trace.ChannelClose(channelKinds[kind])
		close(ch.gone)
		c.exempt(ch)
	})
	if !spawned {
		c.uncount(1)
		slots.closed(false)
		return nil, c.ended(op)
	}
	select {
	case ch := <-confirmed:
		return ch, nil
	case err := <-failed:
		return nil, c.openError(ctx, op, err)
	case <-ctx.Done():
		close(abandoned)
		return nil, fmt.Errorf("%s: %w", op, context.Cause(ctx))
	}
}

// serve answers the peer's requests until the channel has ended.
func (ch *sshChannel) serve(kind string, reqs <-chan *ssh.Request) {
	var late <-chan time.Time
	for {
		select {
		case req, ok := <-reqs:
			if !ok {
				return
			}
			if kind == "session" {
				ch.noteExit(req)
			}
			if req.WantReply {
				_ = req.Reply(false, nil) // an error means the channel is ending
			}
			if leave := ch.leave.Load(); leave > 0 && ch.exit != nil && late == nil {
				timer := time.NewTimer(time.Duration(leave))
				defer timer.Stop()
				late = timer.C
			}
		case <-late:
			ch.Close()
		}
	}
}

// noteExit keeps the reported end of the channel's process (RFC 4254, section 6.10). Only the first report counts.
func (ch *sshChannel) noteExit(req *ssh.Request) {
	var exit ExitError
	switch req.Type {
	case "exit-status":
		var msg struct{ Status uint32 }
		if ssh.Unmarshal(req.Payload, &msg) != nil {
			return
		}
		exit.Status = int(msg.Status)
	case "exit-signal":
		var msg struct {
			Signal     string
			CoreDumped bool
			Message    string
			Language   string
		}
		if ssh.Unmarshal(req.Payload, &msg) != nil || msg.Signal == "" {
			return
		}
		exit.Signal = strings.ToValidUTF8(msg.Signal[:min(len(msg.Signal), maxSignal)], "?")
		exit.Message = strings.ToValidUTF8(msg.Message[:min(len(msg.Message), maxForeign)], "?")
	default:
		return
	}
	if ch.exit == nil {
		ch.exit = &exit
		ch.exitReceived.Store(true)
	}
}

// openError turns an error of OpenChannel into the error of op. A refusal keeps the library's *ssh.OpenChannelError
// in its chain; any other error means that the connection has ended.
func (c *Conn) openError(ctx context.Context, op string, err error) error {
	refusal := (*ssh.OpenChannelError)(nil)
	err = shorten(err)
	switch {
	case !errors.As(err, &refusal):
		c.confirm(ctx)
		if lost := c.ended(op); lost != nil {
			return lost
		}
		return fmt.Errorf("%s: %w", op, err)
	case refusal.Reason == ssh.Prohibited || refusal.Reason == ssh.UnknownChannelType:
		return fmt.Errorf("%s: %w: %w", op, ErrForbidden, err)
	default:
		return fmt.Errorf("%s: %w", op, err)
	}
}

// settle waits a moment for done to be closed.
func settle(done <-chan struct{}) {
	if pause.Done(done) {
		return
	}
	timer := time.NewTimer(closeSettle)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// readError turns an error of the library's Read into ours. The library returns io.EOF when the peer has finished
// writing, but also when the connection has died; see confirm.
func (ch *sshChannel) readError(err error) error {
	if ch.exitReceived.Load() && errors.Is(err, io.EOF) && ch.conn.ended("read") == nil {
		return io.EOF
	}
	settle(ch.gone)
	if !pause.Done(ch.gone) { // the peer is done writing and goes on reading, or the error is another
		ch.conn.confirm(context.Background())
	}
	if lost := ch.conn.ended("read"); lost != nil && (!pause.Done(ch.gone) || ch.lost) {
		return lost
	}
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return fmt.Errorf("read: %w", err)
}

// sendError turns an error of sending into the error of op.
func (ch *sshChannel) sendError(op string, err error) error {
	if errors.Is(err, channel.ErrStopped) {
		return err
	}
	if lost := ch.conn.ended(op); lost != nil {
		return lost
	}
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: the other end has closed: %w", op, io.ErrClosedPipe)
	}
	return fmt.Errorf("%s: %w", op, err)
}

// Close closes the channel and wakes calls that wait on it. It does not wait for the peer. Idempotent.
func (ch *sshChannel) Close() {
	ch.closeOnce.Do(func() {
		close(ch.closed)
		// The library's Close writes to the connection, which may block if the peer hangs, so a goroutine does it. A
		// quick Close is waited for, so that closes are sent in the order of their calls.
		sent := make(chan struct{})
		if ch.conn.spawn(func() {
			defer close(sent)
			_ = ch.ssh.Close() // an error means the peer or the connection was first
		}) {
			settle(sent)
		}
	})
}
