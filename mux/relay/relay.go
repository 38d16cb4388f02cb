package relay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/alive"
	"github.com/stepmux/stepmux/internal/hooks"
	"github.com/stepmux/stepmux/internal/streams"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux/channel"
)

const (
	// keepaliveInterval and keepaliveTimeout are the relay's own keepalive. It detects a relay that hangs although
	// its carrier works.
	keepaliveInterval = 15 * time.Second
	keepaliveTimeout  = 30 * time.Second
	// exitTimeout is how long to wait for the program's exit status once the relay has closed the stream.
	exitTimeout = time.Second
	// closeTimeout is how long a stream closed by this end waits for the other end to close.
	closeTimeout = 30 * time.Second
)

// Duplex is a byte stream to a relay's program: Write goes to its stdin, Read reads its stdout. Each is called by one
// goroutine. CloseWrite ends the program's stdin. Close ends the stream, after which Read and Write return soon; it
// is idempotent.
type Duplex interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// Config describes the carrier of a Relay and has its hooks. The zero value is usable.
type Config struct {
	// RTT is the round trip to the program. It determines how much data of a stream may be in flight. If zero, that
	// of a LAN.
	RTT time.Duration
	// Stderr returns the last lines that the program wrote to its standard error, for error messages. May be nil.
	Stderr func() string
	// Exit waits until the program or ctx has ended. If the program exited with a failure, the error wraps a
	// *channel.ExitError. May be nil.
	Exit func(ctx context.Context) error
	// Lost returns the error for op if the carrier was lost, and nil if it works or the program ended it. If Lost is
	// nil, every end of the carrier counts as the program's.
	Lost func(op string) error
	// Leftover is called when New fails. wait returns once the carrier's Read and Write have returned and the goroutines
	// that called them are gone. May be nil.
	Leftover func(wait func())

	// Begin is called before a stream is opened; an error from it refuses the stream. End is called with the number
	// of streams, of those that Begin allowed, that are no longer open. Both may be nil.
	Begin func(op string) error
	End   func(n int)
	// Opened is called when the relay has answered a request, Closed when an open stream has been closed. Both may be
	// nil.
	Opened func(took time.Duration, err error)
	Closed func()
}

// Relay starts processes and connects to sockets through one program on the VM. It is safe for concurrent use.
//
// It owns these goroutines: two that carry bytes, two that watch, one for each process, and one for each request
// until it is answered. All are gone when Close returns, except those that deliver a process's stderr: they belong to
// Process.Wait. When a Relay ends, everything that goes through it fails with an [*Error], or with the error of
// Config.Lost if the carrier was lost.
type Relay struct {
	cfg     Config
	carrier Duplex
	link    *link
	session *streams.Session
	program Program
	wg      sync.WaitGroup

	ending  chan struct{} // closed by Close
	endOnce sync.Once

	done chan struct{} // closed once err is set
	mu   sync.Mutex    // guards the following
	err  error
	open int // streams that are open, or being opened
}

// Program is a relay's description of its program.
type Program struct {
	Version  string // of the program; empty if unknown
	Platform string // os/arch as Go names them; empty if unknown
	Linger   bool   // it has steps serve --linger
}

// New exchanges hellos with the relay at the other end of carrier. ctx bounds that, and has no effect afterwards. New
// owns carrier, even if it fails. Its error is an [*Error], or that of Config.Lost. The caller closes the Relay.
func New(ctx context.Context, carrier Duplex, cfg Config) (*Relay, error) {
	hooks.Fill(&cfg)
	r := &Relay{cfg: cfg, carrier: carrier, ending: make(chan struct{}), done: make(chan struct{})}
	r.link = newLink(carrier, wire.RelayStall, &r.wg)
	in := bufio.NewReaderSize(r.link, streams.ReadAhead)
	r.session = streams.New(streams.Config{
		In: in, Out: r.link.out, Window: wire.RelayWindow(cfg.RTT), CloseTimeout: closeTimeout,
	})
	said := make(chan error, 1)
	r.wg.Go(func() { // ends with the carrier, whose Read cannot be woken
		err := r.exchangeHellos(in)
		said <- err
		if err == nil {
			_ = r.session.Run() // watch asks for the error
		}
	})
	var err error
	select {
	case err = <-said:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, r.startError(ctx, err)
	}
	r.wg.Go(r.watch)
	return r, nil
}

// exchangeHellos sends our hello and reads the relay's.
func (r *Relay) exchangeHellos(from *bufio.Reader) error {
	if _, err := r.link.out.Write([]byte(wire.ManagerHello(wire.RelayVersion))); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	version, noise, err := wire.FindRelayHello(from)
	switch {
	case err == nil && version != wire.RelayVersion:
		return &Error{Op: "start", Version: version, Err: fmt.Errorf(
			"the relay speaks version %d of the protocol, this program version %d: install the same stepmux on both ends",
			version, wire.RelayVersion)}
	case err != nil && len(noise) > 0:
		return fmt.Errorf("%w; it printed %q", err, noise[:min(len(noise), 80)])
	}
	p := wire.FindProgramHello(noise)
	r.program = Program{Version: p.Version, Platform: p.Platform, Linger: p.Linger}
	return err
}

// startError closes the carrier and returns why the relay did not start.
func (r *Relay) startError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", cause, err)
	}
	r.session.Close()
	_ = r.carrier.Close()
	r.cfg.Leftover(r.wg.Wait)
	exit := r.awaitExit() //nolint:contextcheck // ctx may have ended
	if lost := r.cfg.Lost("start relay"); lost != nil {
		return lost
	}
	e := &Error{Op: "start", Err: err, Stderr: r.cfg.Stderr()}
	if first := (*Error)(nil); errors.As(err, &first) {
		e.Err, e.Version = first.Err, first.Version
	}
	if exit != nil && ctx.Err() == nil && e.Version == 0 && !errors.Is(err, ErrOtherProgram) {
		e.Err, e.ExitCode = exit, exit.Status
	}
	return e
}

// awaitExit waits a moment for the program's exit. It returns nil if the program succeeded or its exit is unknown.
func (r *Relay) awaitExit() *channel.ExitError {
	ctx, cancel := context.WithTimeout(context.Background(), exitTimeout)
	defer cancel()
	exit := (*channel.ExitError)(nil)
	if errors.As(r.cfg.Exit(ctx), &exit) && *exit != (channel.ExitError{}) {
		return exit
	}
	return nil
}

// watch waits for the relay's end, finds the reason, and ends everything that belongs to the relay.
func (r *Relay) watch() {
	ended := make(chan struct{})
	var pings sync.WaitGroup
	silence := make(chan error, 1)
	pings.Go(func() {
		ask := func() {
			pings.Go(r.session.Ping) // any byte received counts as a sign of life
		}
		if err := alive.Watch(ended, keepaliveInterval, keepaliveTimeout, r.link.pulse.Heard, ask); err != nil {
			silence <- err
		}
	})
	var err error
	select {
	case <-r.session.Done():
		err = r.endError()
	case silent := <-silence:
		err = &Error{Op: "keepalive", Err: silent, Stderr: r.cfg.Stderr()}
	case <-r.ending:
		err = &Error{Op: "relay", Err: errClosed}
	}
	close(ended)
	if lost := r.cfg.Lost("relay"); lost != nil {
		err = lost
	}
	r.mu.Lock()
	r.err = err
	close(r.done)
	open := r.open
	r.mu.Unlock()
	r.cfg.End(open)
	r.session.Close()
	_ = r.carrier.Close()
	pings.Wait()
}

// errClosed is the reason for the end of a relay that this side closed.
var errClosed = errors.New("closed by this side")

// endError returns why the session ended: the program exited, or it broke the protocol.
func (r *Relay) endError() error {
	if lost := r.cfg.Lost("relay"); lost != nil {
		return lost
	}
	failure := r.link.failure()
	exit := r.awaitExit()
	e := &Error{Op: "relay", Stderr: r.cfg.Stderr()}
	switch {
	case exit != nil:
		e.Err, e.ExitCode = exit, exit.Status
	case failure == nil:
		e.Op, e.Err = "protocol", r.session.Err()
	case errors.Is(failure, errTakesNothing):
		e.Err = failure
	default:
		e.Err = errors.New("the relay ended")
	}
	return e
}

// begin counts a stream that is about to be opened.
func (r *Relay) begin(op string) error {
	if err := r.cfg.Begin(op); err != nil {
		return err
	}
	r.mu.Lock()
	ended := r.err != nil
	if !ended {
		r.open++
	}
	r.mu.Unlock()
	if ended {
		r.cfg.End(1)
		return r.ended(op)
	}
	return nil
}

// finish undoes begin.
func (r *Relay) finish() {
	r.mu.Lock()
	r.open--
	ended := r.err != nil // if true, watch has already reported all streams to End
	r.mu.Unlock()
	if !ended {
		r.cfg.End(1)
	}
}

// spawn runs fn in a goroutine that Close waits for. It returns false if the relay has ended.
func (r *Relay) spawn(fn func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return false
	}
	r.wg.Go(fn)
	return true
}

// Program returns the relay's description of its program. The text is untrusted, but short and printable.
func (r *Relay) Program() Program { return r.program }

// Done returns a channel that is closed when the relay has ended.
func (r *Relay) Done() <-chan struct{} { return r.done }

// Err returns nil while the relay lives. Afterwards it returns why it ended: an [*Error], or the error of
// Config.Lost.
func (r *Relay) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Streams returns how many processes and sockets are open through the relay, or being opened.
func (r *Relay) Streams() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open
}

// Close ends the relay now, and its processes on the VM. It waits for the relay's goroutines, and so until the
// carrier's Read and Write have returned. Calls that wait on the relay return an [*Error]. Idempotent; it returns
// nil.
func (r *Relay) Close() error {
	r.endOnce.Do(func() { close(r.ending) })
	<-r.done
	r.wg.Wait()
	return nil
}

// ended returns the error for op on a relay whose session has ended.
func (r *Relay) ended(op string) error {
	<-r.done // soon: watch notices the session's end
	err := r.Err()
	if first := (*Error)(nil); errors.As(err, &first) {
		return &Error{Op: op, Err: first}
	}
	if lost := r.cfg.Lost(op); lost != nil {
		return lost
	}
	return err
}

// alive returns the error for op if the relay or its session has ended, and nil otherwise.
func (r *Relay) alive(op string) error {
	if r.session.Err() != nil || r.Err() != nil {
		return r.ended(op)
	}
	return nil
}
