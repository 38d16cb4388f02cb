package relay

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux/channel"
)

// smallFrame is the size of the buffer for frames of an idle process.
const smallFrame = 512

// process is the [channel.ProcessTransport] of a process. One goroutine receives its frames and ends with the stream.
// While there is stderr to deliver a second one does that; it ends when the caller's Writer has returned.
type process struct {
	*stream
	stdout, stderr *inbox
	gone           chan struct{} // closed once the stream has ended and exit or lost is set
	exited         chan struct{} // closed once stderr is delivered, too
	stderrTo       io.Writer     // nil to discard stderr; owned by the goroutine that delivers

	exit wire.RelayExit // valid once gone is closed, if lost is nil
	lost error

	mu   sync.Mutex // guards the following
	room int        // bytes of stdin that may be sent
	more chan struct{}
}

func newProcess(s *stream, cmd channel.Command) *process {
	return &process{
		stream:   s,
		stdout:   newInbox(),
		stderr:   newInbox(),
		room:     wire.RelayProcessWindow - len(cmd.Input),
		more:     make(chan struct{}, 1),
		gone:     make(chan struct{}),
		exited:   make(chan struct{}),
		stderrTo: cmd.Stderr,
	}
}

// receive delivers the frames of the stream until it ends.
func (p *process) receive() {
	err := p.readFrames()
	switch {
	case errors.Is(err, wire.ErrRelayProtocol):
		p.lost = fmt.Errorf("wait for remote process: %w", err)
	case err != nil:
		p.lost = p.relay.streamError("wait for remote process", err)
	}
	end := cmp.Or(p.lost, io.EOF)
	p.stdout.end(end)
	p.stderr.end(end)
	p.deliverStderr()
	close(p.gone)
	p.hangUp()
}

// readFrames reads frames until the process's exit and returns nil, or returns why the exit did not arrive.
func (p *process) readFrames() error {
	buf := make([]byte, smallFrame)
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
			return err // a malformed exit must not count as an exit, let alone as status 0
		default:
			err = fmt.Errorf("%w: a frame %q from a process", wire.ErrRelayProtocol, kind)
		}
		if err != nil {
			return err
		}
		if n <= smallFrame && len(buf) > smallFrame {
			buf = make([]byte, smallFrame)
		}
	}
}

// Read reads the process's stdout.
func (p *process) Read(b []byte, stop <-chan struct{}) (int, error) {
	n, credit, err := p.stdout.read(b, stop)
	p.grant(wire.FrameData, credit)
	return n, err
}

// grant allows the relay to send n more bytes of a kind.
func (p *process) grant(kind wire.RelayFrame, n int) {
	if n > 0 {
		// An error means that the stream has ended, which receive reports.
		_, _ = p.raw.Write(wire.RelayCredit{Kind: kind, N: uint32(n)}.Append(nil))
	}
}

// deliverStderr starts a goroutine that delivers the stderr received so far, or its end. The caller's Writer may
// block, and most processes write nothing to stderr, so this does not run all the time.
func (p *process) deliverStderr() {
	if p.stderr.claim() {
		go p.pumpStderr()
	}
}

// pumpStderr delivers stderr until all that has been received is delivered.
func (p *process) pumpStderr() {
	for {
		data, credit, err := p.stderr.take() // also after Close: a process may print why it ends
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
func (p *process) Write(b []byte, stop <-chan struct{}) (int, error) {
	total := 0
	for len(b) > 0 {
		n, err := p.takeRoom(min(len(b), wire.MaxRelayFrame), stop)
		if err != nil {
			return total, err
		}
		if err := p.sendStdin(b[:n], stop); err != nil {
			return total, err
		}
		total += n
		b = b[n:]
	}
	return total, nil
}

// sendStdin sends a frame of stdin, or nothing. The stream's window is larger than all outstanding credit, so Write
// never waits for it.
func (p *process) sendStdin(b []byte, stop <-chan struct{}) error {
	size := wire.RelayFrameHeader + len(b)
	out := p.relay.link.out
	if !out.Reserve(size, stop) {
		p.mu.Lock()
		p.room += len(b)
		p.mu.Unlock()
		return channel.ErrStopped
	}
	defer out.Release(size)
	var head [wire.RelayFrameHeader]byte
	wire.PutFrameHeader(head[:], wire.FrameData, len(b))
	if err := p.raw.WriteBoth(head[:], b); err != nil {
		return p.failure("write", err)
	}
	return nil
}

// CloseWrite ends the process's stdin.
func (p *process) CloseWrite(<-chan struct{}) error {
	return p.sendSmall("close write", wire.FrameEnd, nil)
}

// sendSmall sends a frame of few bytes. The link has room for these without a reservation.
func (p *process) sendSmall(op string, kind wire.RelayFrame, payload []byte) error {
	if _, err := p.raw.Write(wire.AppendFrame(nil, kind, payload)); err != nil {
		return p.failure(op, err)
	}
	return nil
}

// takeRoom waits until the relay accepts more stdin, and returns how many bytes, at most n.
func (p *process) takeRoom(n int, stop <-chan struct{}) (int, error) {
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
		case <-stop:
			return 0, channel.ErrStopped
		case <-p.gone:
			if p.lost != nil {
				return 0, p.lost
			}
			return 0, fmt.Errorf("write: the process has ended: %w", io.ErrClosedPipe)
		}
	}
}

// credit handles the relay's grant of room for stdin.
func (p *process) credit(payload []byte) error {
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

// Close ends the process if it runs: the relay sees the end of the stream. Stderr is still delivered until the
// process is gone.
func (p *process) Close() {
	p.stdout.discard()
	p.hangUp()
}

// Exited implements [channel.ProcessTransport].
func (p *process) Exited() <-chan struct{} { return p.exited }

// Err implements [channel.ProcessTransport].
func (p *process) Err() error {
	switch {
	case p.lost != nil:
		return p.lost
	case p.exit.Signal != "":
		return &channel.ExitError{Signal: p.exit.Signal, Message: p.exit.Text}
	case p.exit.Status != 0:
		return &channel.ExitError{Status: int(p.exit.Status)}
	case p.exit.Text != "":
		return &channel.ExitError{Message: p.exit.Text}
	default:
		return nil
	}
}

// Signal implements [channel.ProcessTransport].
func (p *process) Signal(name string) error {
	return p.sendSmall("signal", wire.FrameSignal, []byte(name))
}
