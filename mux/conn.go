package mux

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stepmux/stepmux/internal/pause"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/flight"
	"github.com/stepmux/stepmux/mux/channel"
	"github.com/stepmux/stepmux/mux/relay"
)

// closeSettle is how long to wait for an event that usually follows at once. If TCP fails, its error is known before
// the channels end. But if the library ends the connection itself (a disconnect message, a broken packet), it closes
// the channels a moment before the connection. So io.EOF alone does not prove success.
const closeSettle = 5 * time.Millisecond

// causeTimeout is how long to wait for the library's reason after it has ended. It follows at once unless the machine
// is busy, or the server goes on sending; see libraryEnded.
const causeTimeout = 5 * time.Second

// Conn is one SSH connection. It is safe for concurrent use.
//
// It owns these goroutines: the keepalive and its probe, two that answer the server's requests, one for each channel,
// one for each stream that is read, one for each Write that is under way, and those of its relays. All are gone when
// Close returns. One goroutine belongs to Process.Wait instead: it delivers the process's stderr, and ends with the
// channel once the caller's Writer has returned. A server that breaks the protocol can make the SSH library leave some
// goroutines behind: see libraryEnded.
type Conn struct {
	addr, user string
	since      time.Time
	nc         *netConn
	ssh        ssh.Conn
	sessions   *budget
	streams    *budget // without a limit: channels that are not sessions
	trace      *Trace
	rtt        atomic.Int64 // nanoseconds of the last keepalive, 0 before the first

	done   chan struct{} // closed once err is set
	over   chan struct{} // closed once the library has ended all channels; done follows within causeTimeout
	empty  chan struct{} // closed once it is draining and has no channels
	unread chan struct{} // closed once the rest of a stream need not be read
	wg     sync.WaitGroup

	probe flight.Flight[time.Duration] // asks the peer for an answer; see probePeer

	mu       sync.Mutex                              // guards the following
	err      error                                   // why the connection ended
	channels int                                     // open or being opened
	draining bool                                    // Shutdown was called: no new channels
	relays   map[string]*flight.Flight[*relay.Relay] // by command line
	spares   map[*Spare]struct{}                     // neither taken nor closed
}

func newConn(
	nc *netConn, cc ssh.Conn, chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request, addr string, cfg *Config,
) *Conn {
	c := &Conn{
		addr:     addr,
		user:     cfg.User,
		since:    time.Now(),
		nc:       nc,
		ssh:      cc,
		sessions: &budget{limit: cfg.SessionLimit},
		streams:  &budget{},
		trace:    cfg.Trace,
		done:     make(chan struct{}),
		over:     make(chan struct{}),
		empty:    make(chan struct{}),
		unread:   make(chan struct{}),
	}
	c.probe.GoOn = true
	c.sessions.scarce = c.giveUpSpares
	c.wg.Go(func() { ssh.DiscardRequests(reqs) })
	c.wg.Go(func() {
		for ch := range chans {
			// We asked for no forwarding, so there is nothing to accept. An error means that the connection is
			// ending, which others report.
			_ = ch.Reject(ssh.Prohibited, "this client accepts no channels")
		}
		c.libraryEnded(cc.Wait)
	})
	c.wg.Go(func() { c.keepalive(cfg.KeepaliveInterval, cfg.KeepaliveTimeout) })
	nc.notify(c.fail)
	return c
}

// local is the address of this end of the connection's streams: that of the server, which forwards them.
func (c *Conn) local() channel.Addr { return channel.Addr{Net: "tcp", Text: c.addr} }

// Done returns a channel that is closed when the connection has ended, whatever the reason.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns nil while the connection lives. Afterwards it returns why it ended: ErrClosed or a [*ConnError].
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// libraryEnded ends the connection after the library has closed all channels. The library gives its reason once it
// has stopped reading. If the server broke the protocol and keeps sending, it never stops: its queue is full and has
// no reader. Then its three goroutines, that queue, and one goroutine of ours are left behind.
func (c *Conn) libraryEnded(wait func() error) {
	close(c.over)
	cause := make(chan error, 1)
	go func() { cause <- wait() }()
	timer := time.NewTimer(causeTimeout)
	defer timer.Stop()
	select {
	case err := <-cause:
		c.fail("read", err)
	case <-timer.C:
		c.fail("read", errors.New("the SSH library gave no reason: the server broke the protocol, and goes on sending"))
	}
}

// fail ends the connection because op met err. Only the first call counts.
func (c *Conn) fail(op string, err error) {
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF // a loss must not look like an end
	}
	c.end(&ConnError{Op: op, Addr: c.addr, Err: shorten(err)})
}

// end ends the connection, and with it all calls that wait on it.
func (c *Conn) end(err error) {
	c.mu.Lock()
	first := c.err == nil
	if first {
		c.err = err
		close(c.done)
	}
	c.mu.Unlock()
	if first {
		// Not ssh.Close, which may block behind a write that a dead peer never takes.
		_ = c.nc.Close()
		c.trace.Close(err)
	}
}

// Close ends the connection now and waits for its goroutines. Calls that wait on it return ErrClosed. Processes that it
// started see their stdin end, and stop by themselves if they watch it: RFC 4254 has no way to end a remote process
// with its channel. What was received and not read is lost. Close is idempotent and returns nil.
func (c *Conn) Close() error {
	c.discard()
	c.close()
	return nil
}

// discard ends streams whose rest is not read.
func (c *Conn) discard() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !pause.Done(c.unread) {
		close(c.unread)
	}
}

// close is Close, but waits until each stream was read to its end or closed, or discard was called.
func (c *Conn) close() {
	c.end(ErrClosed)
	c.probe.Close()
	c.closeRelays()
	c.wg.Wait()
}

// Shutdown refuses new channels with ErrClosed, waits until the open ones have ended and were read, and closes the
// connection. If ctx ends first, Shutdown closes the connection at once and returns ctx's cause.
func (c *Conn) Shutdown(ctx context.Context) error {
	c.mu.Lock()
	if !c.draining && c.channels == 0 {
		close(c.empty)
	}
	c.draining = true
	c.mu.Unlock()
	stop := context.AfterFunc(ctx, c.discard)
	select {
	case <-c.empty:
	case <-c.done:
	case <-ctx.Done():
	}
	c.close()
	if !stop() {
		return context.Cause(ctx)
	}
	return nil
}

// ended returns the error for op if the connection has ended, and nil while it lives.
func (c *Conn) ended(op string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.endedLocked(op)
}

func (c *Conn) endedLocked(op string) error {
	if lost := (*ConnError)(nil); errors.As(c.err, &lost) {
		return &ConnError{Op: op, Addr: c.addr, Err: lost}
	}
	return c.err
}

// count counts a channel that is about to be opened, or a stream of a relay. It returns an error if the connection
// accepts no new channels.
func (c *Conn) count(op string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.countLocked(op)
}

func (c *Conn) countLocked(op string) error {
	if err := c.refusalLocked(op); err != nil {
		return err
	}
	c.channels++
	return nil
}

// refusalLocked returns the error for op if the connection accepts no new channels.
func (c *Conn) refusalLocked(op string) error {
	if c.err == nil && c.draining {
		return ErrClosed
	}
	return c.endedLocked(op)
}

// uncount undoes count, n times.
func (c *Conn) uncount(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.uncountLocked(n)
}

func (c *Conn) uncountLocked(n int) {
	c.channels -= n
	if n > 0 && c.channels == 0 && c.draining {
		close(c.empty)
	}
}

// exempt stops counting a channel, so that Shutdown does not wait for it: the channel has ended, or it belongs to a
// relay or a spare process.
func (c *Conn) exempt(ch *sshChannel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !ch.exempt {
		ch.exempt = true
		c.uncountLocked(1)
	}
}

// spawn runs fn in a goroutine that Close waits for. It returns false if the connection has ended.
func (c *Conn) spawn(fn func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return false
	}
	c.wg.Go(fn)
	return true
}

// spawnOrRun is spawn, but runs fn on this goroutine if the connection has ended: fn waits for that end, and returns
// soon.
func (c *Conn) spawnOrRun(fn func()) {
	if !c.spawn(fn) {
		fn()
	}
}

// Stat is a snapshot of a connection.
type Stat struct {
	Addr, User    string
	ServerVersion string        // the server's identification string
	Since         time.Time     // when the login was complete
	RTT           time.Duration // of the last keepalive, 0 before the first
	Streams       int           // open channels other than sessions
	Relayed       int           // open processes and sockets that go through a relay
	Sessions      SessionStat
}

// SessionStat is a snapshot of a connection's session budget.
type SessionStat struct {
	Taken   int    // sessions that are open, or being opened
	Open    int    // sessions that the server has confirmed and not closed
	Peak    int    // the most that were open at once
	Waiting int    // callers that wait for a session
	Limit   int    // the number the server allows, 0 while unknown
	Learned bool   // the limit was learned from a refusal, not configured
	Refused uint64 // sessions the server has refused so far
}

// Stat returns a snapshot.
func (c *Conn) Stat() Stat {
	return Stat{
		Addr:          c.addr,
		User:          c.user,
		ServerVersion: string(c.ssh.ServerVersion()),
		Since:         c.since,
		RTT:           time.Duration(c.rtt.Load()),
		Streams:       c.streams.stat().Open,
		Relayed:       c.relayed(),
		Sessions:      c.sessions.stat(),
	}
}

// LimitSource returns the origin of the limit: "configured", "learned" from a refusal, or "unknown".
func (s SessionStat) LimitSource() string {
	switch {
	case s.Limit == 0:
		return "unknown"
	case s.Learned:
		return "learned"
	default:
		return "configured"
	}
}
