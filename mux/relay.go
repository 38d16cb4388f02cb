package mux

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/stepmux/stepmux/internal/flight"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux/channel"
	"github.com/stepmux/stepmux/mux/relay"
)

// relayStartTimeout bounds the start of a relay, from the wait for a session to its hello. Tests change it.
var relayStartTimeout = 30 * time.Second

// relayLeave is the Command.Leave of a relay that has not said hello.
const relayLeave = time.Second

// Relay returns the connection's relay that runs cmd, such as `stepmux steps relay`, and starts it if it does not run
// yet. The relay runs in one session and ends with the connection. ctx bounds the caller's wait; the start goes on
// for other callers. If the program on the VM did not come up, the error is a [*relay.Error] with its last lines of
// stderr.
func (c *Conn) Relay(ctx context.Context, cmd Command) (*relay.Relay, error) {
	if err := cmd.Check(); err != nil {
		return nil, err
	}
	line, err := shellLine(cmd)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	if err := c.refusalLocked("start relay"); err != nil {
		c.mu.Unlock()
		return nil, err
	}
	start := c.relays[line]
	if start == nil {
		start = &flight.Flight[*relay.Relay]{
			GoOn:  true,
			Holds: func(r *relay.Relay) bool { return !pause.Done(r.Done()) },
		}
		if c.relays == nil {
			c.relays = make(map[string]*flight.Flight[*relay.Relay])
		}
		c.relays[line] = start
	}
	c.mu.Unlock()
	r, err := start.Do(ctx, func(ctx context.Context) (*relay.Relay, time.Duration, error) {
		r, keep, err := c.startRelay(ctx, cmd)
		if exit := (*channel.ExitError)(nil); errors.As(err, &exit) && exit.Signal == "KILL" {
			return c.startRelay(ctx, cmd) // such as by a system short of memory: nothing is known about the program
		}
		return r, keep, err
	})
	switch {
	case errors.Is(err, flight.ErrClosed):
		return nil, c.ended("start relay")
	case err != nil && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		return nil, fmt.Errorf("start relay: %w", err)
	}
	return r, err
}

// closeRelays ends the starts of relays that are under way, and waits for them. The connection has ended before.
func (c *Conn) closeRelays() {
	for _, start := range c.relayStarts() {
		start.Close()
	}
}

func (c *Conn) relayStarts() []*flight.Flight[*relay.Relay] {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.relays))
}

// Relayed returns a relay of the connection that runs, or nil.
func (c *Conn) Relayed() *relay.Relay {
	for _, start := range c.relayStarts() {
		if r, ok := start.Kept(); ok {
			return r
		}
	}
	return nil
}

// relayed returns how many processes and sockets are open by way of relays.
func (c *Conn) relayed() int {
	n := 0
	for _, start := range c.relayStarts() {
		if r, ok := start.Kept(); ok {
			n += r.Streams()
		}
	}
	return n
}

// startRelay starts the program in a session and exchanges hellos with it. It is the work of a Flight, which keeps
// the relay, but not an error.
func (c *Conn) startRelay(ctx context.Context, cmd Command) (_ *relay.Relay, keep time.Duration, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, relayStartTimeout,
		fmt.Errorf("the relay did not say hello within %v", relayStartTimeout))
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	said := &relayStderr{echo: func() { stop(relay.ErrOtherProgram) }}
	cmd.Leave = relayLeave
	cmd.Stderr = io.MultiWriter(said, cmp.Or[io.Writer](cmd.Stderr, io.Discard))
	rtt := make(chan time.Duration, 1) // measured while the program starts
	c.spawnOrRun(func() { rtt <- c.measureRTT(ctx) })
	p, _, err := c.startSession(ctx, cmd, c.openSessions)
	if err != nil {
		if ctx.Err() != nil && c.ended("start relay") == nil {
			return nil, 0, &relay.Error{Op: "start", Err: err}
		}
		return nil, 0, err
	}
	r, err := relay.New(ctx, &relayCarrier{p: p}, relay.Config{
		RTT:    <-rtt,
		Stderr: said.String,
		Exit: func(ctx context.Context) error {
			select {
			case <-p.exited:
				return p.Err()
			case <-ctx.Done():
				return nil
			}
		},
		Lost:     c.ended,
		Leftover: c.spawnOrRun,
		Begin:    c.count,
		End:      c.uncount,
		Opened:   func(took time.Duration, err error) { c.trace.ChannelOpen(RelayChannel, took, err) },
		Closed:   func() { c.trace.ChannelClose(RelayChannel) },
	})
	if err != nil {
		return nil, 0, err
	}
	p.leave.Store(0) // the last output of a relay that worked may take its time
	c.exempt(p.sshChannel)
	c.spawnOrRun(func() {
		select {
		case <-r.Done():
		case <-c.done:
		}
		_ = r.Close() // always nil; it waits for the relay's goroutines
	})
	return r, -1, nil
}

// relayStderr keeps the last lines of a relay's stderr, and notices that another program quotes the manager's hello.
type relayStderr struct {
	tail.Writer
	echo func()
	line []byte // the last, unfinished line
}

// Write implements io.Writer. It never fails.
func (s *relayStderr) Write(p []byte) (int, error) {
	s.line = append(s.line, p...)
	if wire.Echoes(s.line) {
		s.echo()
	}
	s.line = s.line[bytes.LastIndexByte(s.line, '\n')+1:]
	s.line = s.line[max(0, len(s.line)-tail.MaxBytes):]
	return s.Writer.Write(p)
}

// relayCarrier is the session of a relay. It reads and writes the SSH library's channel without the goroutines of a
// channelStream, because the relay has its own.
//
// While much data comes it reads large pieces. That costs a copy, but fewer window updates: the library sends one to
// the server for each read of a channel in which three packets wait.
type relayCarrier struct {
	p *sessionProcess

	// Owned by Read:
	bulk *[bulkChunk]byte // nil unless much data comes
	rest []byte           // the unread part of bulk
	more bool             // the last read was a large one
}

func (c *relayCarrier) Read(p []byte) (int, error) {
	if len(c.rest) == 0 && c.more {
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
	if len(c.rest) == 0 {
		c.free()
		n, err := c.p.ssh.Read(p)
		if err != nil {
			return n, c.p.readError(err)
		}
		c.more = n == len(p)
		return n, nil
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// fill reads a large piece.
func (c *relayCarrier) fill() error {
	if c.bulk == nil {
		c.bulk = bulks.Get().(*[bulkChunk]byte)
	}
	n, err := c.p.ssh.Read(c.bulk[:])
	c.rest, c.more = c.bulk[:n], n >= chunkSize
	if err != nil {
		c.free()
		return c.p.readError(err)
	}
	return nil
}

// free returns the buffer to its pool. Idempotent.
func (c *relayCarrier) free() {
	if c.bulk != nil {
		bulks.Put(c.bulk)
		c.bulk, c.rest = nil, nil
	}
}

func (c *relayCarrier) Write(p []byte) (int, error) { return c.p.ssh.Write(p) }
func (c *relayCarrier) CloseWrite() error           { return c.p.ssh.CloseWrite() }

func (c *relayCarrier) Close() error {
	c.p.Close()
	return nil
}
