package mux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/stepmux/stepmux/internal/wire"
)

// Start starts a process by the relay, which forks it: in a session and process group of its own, with
// the environment of the login. ctx bounds the wait for the answer and means nothing to the process once
// it runs. The caller calls Close, which ends the process if it runs. A [*RefusedError] with
// RefusedNotFound says that there is no such program or directory.
func (r *Relay) Start(ctx context.Context, cmd Command) (*Process, error) {
	if err := cmd.check(); err != nil {
		return nil, err
	}
	message, err := wire.AppendRelayStart(nil, wire.RelayStart{
		Argv: cmd.Argv, Line: cmd.Line, Dir: cmd.Dir, Env: cmd.Env, Ready: cmd.Ready,
	})
	if err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	if len(cmd.Input) > 0 {
		message = wire.AppendFrame(message, wire.FrameData, cmd.Input)
	}
	stream, err := r.request(ctx, "start", message)
	if err != nil {
		return nil, err
	}
	p := &relayProcess{
		relayStream: stream,
		stdout:      newInbox(),
		stderr:      newInbox(),
		room:        wire.RelayProcessWindow - len(cmd.Input),
		more:        make(chan struct{}, 1),
		gone:        make(chan struct{}),
		exited:      make(chan struct{}),
		stderrTo:    cmd.Stderr,
	}
	if !r.conn.spawn(p.receive) {
		p.receive() // finds the end at once
	}
	return newProcess(p), nil
}

// relayProcess is a Process by a relay. Its goroutines are one that receives frames, which ends with the stream,
// and, while there is some, one that delivers stderr, which does not end before the caller's Writer returns.
type relayProcess struct {
	*relayStream
	stdout, stderr *inbox
	gone           chan struct{} // closed once the stream has ended and exit or lost is set
	exited         chan struct{} // closed once stderr is delivered, too
	stderrTo       io.Writer     // nil: nobody wants it, or no more; owned by whoever delivers

	exit wire.RelayExit // valid after gone, unless lost is not nil
	lost error

	mu   sync.Mutex // guards the following
	room int        // how much of stdin may be sent
	more chan struct{}
}

// receive takes the frames of the stream to their places until it ends.
func (p *relayProcess) receive() {
	exited := false
	err := p.readFrames(&exited)
	switch {
	case !exited && errors.Is(err, wire.ErrRelayProtocol):
		p.lost = fmt.Errorf("wait for remote process: %w", err)
	case !exited:
		p.lost = p.relay.streamError("wait for remote process", err)
	}
	// Whoever still reads or writes shall know.
	end := p.lost
	if end == nil {
		end = io.EOF
	}
	p.stdout.end(end)
	p.stderr.end(end)
	p.deliverStderr()
	close(p.gone)
	p.hangUp()
}

// readFrames returns why there are no more frames, which is io.EOF after FrameExit.
func (p *relayProcess) readFrames(exited *bool) error {
	buf := make([]byte, idleChunk)
	for {
		kind, n, err := wire.ReadFrameHeader(p.raw)
		if err != nil {
			return err
		}
		if n > len(buf) {
			buf = make([]byte, wire.MaxRelayFrame)
		}
		payload := buf[:n]
		if _, err := io.ReadFull(p.raw, payload); err != nil {
			return err
		}
		switch kind {
		case wire.FrameData:
			err = p.stdout.put(payload)
		case wire.FrameStderr:
			if err = p.stderr.put(payload); err == nil {
				p.deliverStderr()
			}
		case wire.FrameEnd:
			p.stdout.end(io.EOF)
		case wire.FrameCredit:
			err = p.credit(payload)
		case wire.FrameExit:
			p.exit, err = wire.ParseRelayExit(payload)
			*exited = err == nil // what makes no sense is no end, least of all a good one
			return err
		default:
			err = fmt.Errorf("%w: a frame %q from a process", wire.ErrRelayProtocol, kind)
		}
		if err != nil {
			return err
		}
		if n <= idleChunk && len(buf) > idleChunk {
			buf = make([]byte, idleChunk)
		}
	}
}

// Read reads the process's stdout.
func (p *relayProcess) Read(b []byte) (int, error) {
	n, credit, err := p.stdout.read(b, p.closed)
	p.grant(wire.FrameData, credit)
	return n, err
}

// grant tells the relay that n bytes more of a kind may come.
func (p *relayProcess) grant(kind wire.RelayFrame, n int) {
	if n > 0 {
		// An error means that the stream has ended, which whoever reads finds.
		_, _ = p.raw.Write(wire.RelayCredit{Kind: kind, N: uint32(n)}.Append(nil))
	}
}

// deliverStderr sees to it that what there is of stderr, or its end, is delivered, by a goroutine of its own: the
// caller's Writer may block, and most processes say nothing.
func (p *relayProcess) deliverStderr() {
	if p.stderr.claim() {
		go p.pumpStderr()
	}
}

// pumpStderr delivers stderr until there is no more for now.
func (p *relayProcess) pumpStderr() {
	for {
		data, credit, err := p.stderr.take() // also after Close: what the process says on its way out
		p.grant(wire.FrameStderr, credit)
		if len(data) > 0 && p.stderrTo != nil {
			if _, werr := p.stderrTo.Write(data); werr != nil {
				p.stderrTo = nil
			}
		}
		switch {
		case err != nil:
			<-p.gone
			close(p.exited)
			return
		case len(data) == 0:
			return
		}
	}
}

// Write writes to the process's stdin.
func (p *relayProcess) Write(b []byte) (int, error) {
	total := 0
	for len(b) > 0 {
		n, err := p.takeRoom(min(len(b), wire.MaxRelayFrame))
		if err != nil {
			return total, err
		}
		frame := frames.Get().(*[wire.RelayFrameHeader + wire.MaxRelayFrame]byte)
		copy(frame[wire.RelayFrameHeader:], b[:n])
		if err := p.wakeable("write", func() error {
			defer frames.Put(frame)
			return p.send(frame, wire.FrameData, n)
		}); err != nil {
			return total, err
		}
		total += n
		b = b[n:]
	}
	return total, nil
}

// CloseWrite ends the process's stdin.
func (p *relayProcess) CloseWrite() error {
	return p.wakeable("close write", func() error {
		var err error
		p.closeWrite.Do(func() { _, err = p.raw.Write(wire.AppendFrame(nil, wire.FrameEnd, nil)) })
		return err
	})
}

// wakeable runs a write so that Close wakes its caller. yamux has nothing that wakes a write to a peer that
// takes nothing but the session's end, for which such a write then waits, as a goroutine of the Conn.
func (p *relayProcess) wakeable(op string, write func() error) error {
	written := make(chan error, 1)
	if !p.relay.conn.spawn(func() { written <- write() }) {
		return p.relay.conn.ended(op)
	}
	select {
	case err := <-written:
		if err != nil {
			return p.error(op, err)
		}
		return nil
	case <-p.closed:
		return fmt.Errorf("%s: %w", op, io.ErrClosedPipe)
	}
}

// takeRoom waits until some of stdin may be sent, and returns how much, at most n.
func (p *relayProcess) takeRoom(n int) (int, error) {
	for {
		p.mu.Lock()
		n := min(n, p.room)
		p.room -= n
		p.mu.Unlock()
		if n > 0 {
			return n, nil
		}
		select {
		case <-p.more:
		case <-p.closed:
			return 0, fmt.Errorf("write: %w", io.ErrClosedPipe)
		case <-p.gone:
			if p.lost != nil {
				return 0, p.lost
			}
			return 0, fmt.Errorf("write: the process has ended: %w", io.ErrClosedPipe)
		}
	}
}

// credit makes room for stdin.
func (p *relayProcess) credit(payload []byte) error {
	c, err := wire.ParseRelayCredit(payload)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.room += int(c.N)
	if c.Kind != wire.FrameData || p.room > wire.RelayProcessWindow {
		return fmt.Errorf("%w: a credit for more than was sent", wire.ErrRelayProtocol)
	}
	select {
	case p.more <- struct{}{}:
	default:
	}
	return nil
}

// Close ends the process, if it runs: the relay sees the end of the stream. What it says until it is
// gone still comes.
func (p *relayProcess) Close() error {
	p.closeOnce.Do(func() {
		close(p.closed)
		p.stdout.discard()
		p.hangUp()
	})
	return nil
}

func (p *relayProcess) exitedC() <-chan struct{} { return p.exited }

func (p *relayProcess) err() error {
	switch {
	case p.lost != nil:
		return p.lost
	case p.exit.Signal != "":
		return &ExitError{Signal: p.exit.Signal, Message: p.exit.Text}
	case p.exit.Status != 0:
		return &ExitError{Status: int(p.exit.Status)}
	case p.exit.Text != "":
		return &ExitError{Message: p.exit.Text}
	default:
		return nil
	}
}

func (p *relayProcess) signal(name string) error {
	if len(name) > 32 {
		return fmt.Errorf("signal: there is none named %.32q", name)
	}
	return p.wakeable("signal", func() error {
		_, err := p.raw.Write(wire.AppendFrame(nil, wire.FrameSignal, []byte(name)))
		return err
	})
}

// inbox holds what a process wrote to one of its streams until somebody reads it.
type inbox struct {
	more chan struct{} // has an element when there may be something new

	mu        sync.Mutex // guards the following
	buf       bytes.Buffer
	err       error // why no more comes
	owed      int   // read since the last credit
	discarded bool
	claimed   bool // somebody takes what is there
}

func newInbox() *inbox { return &inbox{more: make(chan struct{}, 1)} }

// put takes what came. The relay keeps to the window, or it is none of ours.
func (i *inbox) put(p []byte) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.err != nil || i.buf.Len()+i.owed+len(p) > wire.RelayProcessWindow {
		return fmt.Errorf("%w: more output than was granted", wire.ErrRelayProtocol)
	}
	if i.discarded {
		i.owed += len(p) // never granted again: the process ends
		return nil
	}
	i.buf.Write(p)
	i.wakeLocked()
	return nil
}

// end says that no more comes. The first call decides.
func (i *inbox) end(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.err == nil {
		i.err = err
	}
	i.wakeLocked()
}

// discard drops what is there and what will come.
func (i *inbox) discard() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.discarded = true
	i.buf = bytes.Buffer{}
}

func (i *inbox) wakeLocked() {
	select {
	case i.more <- struct{}{}:
	default:
	}
}

// read waits for output and returns some of it, and the credit that is due for what was read.
func (i *inbox) read(p []byte, closed <-chan struct{}) (n, credit int, err error) {
	for {
		i.mu.Lock()
		n, _ := i.buf.Read(p)
		credit, err := i.creditLocked(n), i.err
		left := i.buf.Len()
		i.mu.Unlock()
		switch {
		case isDone(closed):
			return 0, 0, fmt.Errorf("read: %w", io.ErrClosedPipe)
		case n > 0 || len(p) == 0:
			return n, credit, nil
		case err != nil && left == 0:
			return 0, 0, err
		}
		select {
		case <-i.more:
		case <-closed:
		}
	}
}

// claim reports whether the caller is to take what is there, as nobody does.
func (i *inbox) claim() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	claimed := i.claimed
	i.claimed = true
	return !claimed
}

// take returns all there is, the credit that is due, and the end if all was taken. If there is neither, the claim has
// ended.
func (i *inbox) take() (data []byte, credit int, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	data = i.buf.Bytes()
	i.buf = bytes.Buffer{}
	credit, err = i.creditLocked(len(data)), i.err
	i.claimed = len(data) > 0 || err != nil
	return data, credit, err
}

// creditLocked counts n bytes that were read and returns the credit that is due: not for each byte.
func (i *inbox) creditLocked(n int) int {
	i.owed += n
	if i.owed < wire.RelayProcessWindow/2 || i.err != nil {
		if i.buf.Len() == 0 && i.buf.Cap() > idleChunk {
			i.buf = bytes.Buffer{} // an idle process costs nothing
		}
		return 0
	}
	credit := i.owed
	i.owed = 0
	return credit
}

func isDone(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
