package mux

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/stepmux/stepmux/internal/alive"
	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/internal/wire"
)

const (
	// relayInterval and relayTimeout are the keepalive of a relay, by which one that is stuck is found.
	relayInterval = 15 * time.Second
	relayTimeout  = 30 * time.Second
	// relayExitPatience is how long a relay that hung up has to say by its exit status why.
	relayExitPatience = time.Second
	// relayForget is how long a stream that is closed here waits for its other end. yamux keeps what it has received
	// for so long, also when the session is long gone.
	relayForget = 30 * time.Second
)

// relayStartTimeout bounds the start of a relay, from the wait for a session to its hello. Tests change it.
var relayStartTimeout = 30 * time.Second

// Relay starts processes and reaches sockets by way of one program on the VM, which runs in one session:
// `stepmux steps relay`. Each is a stream of that session, so their number is not the server's affair, and
// a start costs no login shell. docs/protocol.md has what is said. It is safe for concurrent use.
//
// A Relay is its connection's: it is started by the first [Conn.Relay] and ends with the connection. It
// owns these goroutines: two that carry bytes, yamux's two, two that watch, and two for each process (that
// which delivers stderr belongs to the process's Wait). When it ends, everything that went by it fails with a [*RelayError], or a [*ConnError] if it was
// the connection that ended, and the VM's end ends the processes.
type Relay struct {
	conn    *Conn
	process *Process
	link    *relayLink
	session *yamux.Session
	program Program

	done chan struct{} // closed once err is set
	mu   sync.Mutex    // guards the following
	err  error
	open int // streams to a process or a socket, or being opened
}

// relayStart is a relay that is being started, or was.
type relayStart struct {
	done  chan struct{} // closed once relay or err is set
	relay *Relay
	err   error
}

// Relay returns the connection's relay of that command, started if there is none or if it has ended. ctx
// bounds the wait; the start goes on for others. Its error is a [*RelayError] when the program on the VM
// did not come up, with what it said.
func (c *Conn) Relay(ctx context.Context, cmd Command) (*Relay, error) {
	if err := cmd.check(); err != nil {
		return nil, err
	}
	line, err := cmd.shellLine()
	if err != nil {
		return nil, err
	}
	start, err := c.relayStart(line, cmd) //nolint:contextcheck // it is started for all who want it
	if err != nil {
		return nil, err
	}
	select {
	case <-start.done:
		return start.relay, start.err
	case <-ctx.Done():
		return nil, fmt.Errorf("start relay: %w", context.Cause(ctx))
	}
}

// relayStart returns the start under way, or the one that gave the living relay, or a new one.
func (c *Conn) relayStart(line string, cmd Command) (*relayStart, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return nil, c.endedLocked("start relay")
	case c.draining:
		return nil, ErrClosed
	}
	if start := c.relays[line]; start != nil {
		select {
		case <-start.done:
			if start.err == nil && !isDone(start.relay.done) {
				return start, nil
			}
		default:
			return start, nil
		}
	}
	start := &relayStart{done: make(chan struct{})}
	if c.relays == nil {
		c.relays = make(map[string]*relayStart)
	}
	c.relays[line] = start
	c.wg.Go(func() {
		defer close(start.done)
		start.relay, start.err = c.startRelay(cmd)
	})
	return start, nil
}

// relayed returns how many processes and sockets are open by way of relays.
func (c *Conn) relayed() int {
	c.mu.Lock()
	starts := slices.Collect(maps.Values(c.relays))
	c.mu.Unlock() // a Relay's lock comes before ours
	n := 0
	for _, start := range starts {
		if isDone(start.done) && start.err == nil && !isDone(start.relay.done) {
			n += start.relay.Streams()
		}
	}
	return n
}

// startRelay starts the program and shakes hands with it.
func (c *Conn) startRelay(cmd Command) (*Relay, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), relayStartTimeout,
		fmt.Errorf("it did not say hello within %v", relayStartTimeout))
	defer cancel()
	said := &tail.Writer{}
	if to := cmd.Stderr; to != nil {
		cmd.Stderr = io.MultiWriter(said, to)
	} else {
		cmd.Stderr = said
	}
	rtt := c.measureRTT(ctx)
	process, err := c.Start(ctx, cmd)
	if err != nil {
		if ctx.Err() != nil {
			return nil, &RelayError{Op: "start", Err: err}
		}
		return nil, err
	}
	impl, ok := process.impl.(*sessionProcess)
	if !ok {
		panic(fmt.Sprintf("BUG: mux: Conn.Start gave a %T", process.impl))
	}
	r := &Relay{conn: c, process: process, done: make(chan struct{})}
	r.link = newRelayLink(impl.channel)
	giveUp := context.AfterFunc(ctx, func() {
		_ = r.link.Close() // always nil; the end of the channel may never come
		process.Close()
	})
	buffered := bufio.NewReader(r.link) // for the hello; yamux reads past it
	err = r.shakeHands(buffered)
	if err == nil {
		cfg := wire.RelayConfig(wire.RelayWindow(rtt))
		cfg.StreamCloseTimeout = relayForget
		r.session, err = yamux.Client(&bufferedLink{r.link, wire.NewRelayGuard(buffered)}, cfg)
	}
	if !giveUp() && err == nil {
		_ = r.session.Close() // always nil
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, r.startError(ctx, err, said)
	}
	c.exempt(impl.channel)
	c.wg.Go(func() { r.watch(said) })
	return r, nil
}

// shakeHands exchanges hellos.
func (r *Relay) shakeHands(from *bufio.Reader) error {
	if _, err := r.link.Write([]byte(wire.ManagerHello(wire.RelayVersion))); err != nil {
		return err
	}
	version, noise, err := wire.FindRelayHello(from)
	switch {
	case err == nil && version != wire.RelayVersion:
		return &RelayError{Op: "start", Version: version, Err: fmt.Errorf(
			"it speaks version %d of the protocol, this program version %d: install the same stepmux on both ends", version, wire.RelayVersion)}
	case err != nil && len(noise) > 0:
		return fmt.Errorf("%w; it printed %q", err, clip(noise, 80))
	}
	p := wire.FindProgramHello(noise)
	r.program = Program{Version: p.Version, Platform: p.Platform}
	return err
}

// startError says why there is no relay, and ends what was started.
func (r *Relay) startError(ctx context.Context, err error, said *tail.Writer) error {
	if ctx.Err() != nil {
		err = fmt.Errorf("%w (%w)", context.Cause(ctx), err)
	}
	_ = r.link.Close() // always nil
	r.process.Close()
	exit := r.awaitExit()
	if lost := r.conn.alive("start relay"); lost != nil {
		return lost
	}
	e := &RelayError{Op: "start", Err: err, Stderr: said.String()}
	if first := (*RelayError)(nil); errors.As(err, &first) {
		e.Err, e.Version = first.Err, first.Version
	}
	if exit != nil && ctx.Err() == nil && e.Version == 0 {
		e.Err = exit
		e.ExitCode = exit.Status
	}
	return e
}

// awaitExit waits a moment for the program's end, and returns it if it told of one that was not well.
func (r *Relay) awaitExit() *ExitError {
	timer := time.NewTimer(relayExitPatience)
	defer timer.Stop()
	select {
	case <-r.process.Exited():
	case <-timer.C:
	}
	if exit := (*ExitError)(nil); errors.As(r.process.Err(), &exit) && *exit != (ExitError{}) {
		return exit
	}
	return nil
}

// watch waits for the relay's end, finds out why, and closes what is left of it.
func (r *Relay) watch(said *tail.Writer) {
	ended := make(chan struct{})
	var pings sync.WaitGroup
	silence := make(chan error, 1)
	pings.Go(func() {
		ask := func() {
			pings.Go(func() { _, _ = r.session.Ping() }) // what counts is that something comes
		}
		if err := alive.Watch(ended, relayInterval, relayTimeout, r.link.heard, ask); err != nil {
			silence <- err
		}
	})
	var err error
	select {
	case <-r.session.CloseChan():
	case err = <-silence:
	case <-r.conn.done:
	}
	close(ended)
	r.fail(r.endError(err, said))
	_ = r.link.Close() // always nil
	_ = r.session.Close()
	r.process.Close()
	pings.Wait()
}

// endError says why the relay ended. silence is not nil when it was the watch that ended it.
func (r *Relay) endError(silence error, said *tail.Writer) error {
	if lost := r.conn.alive("relay"); lost != nil {
		return lost
	}
	if silence != nil {
		return &RelayError{Op: "keepalive", Err: silence, Stderr: said.String()}
	}
	// The session ended: the program has, or what it said was no yamux. Its exit status tells.
	failure := r.link.failure()
	_ = r.link.Close() // always nil
	exit := r.awaitExit()
	if lost := r.conn.alive("relay"); lost != nil {
		return lost
	}
	e := &RelayError{Op: "relay", Stderr: said.String()}
	switch {
	case exit != nil:
		e.Err, e.ExitCode = exit, exit.Status
	case errors.Is(failure, wire.ErrRelayProtocol):
		e.Op, e.Err = "protocol", failure
	case failure == nil:
		e.Op, e.Err = "protocol", errors.New("what came from it makes no sense")
	default:
		e.Err = errors.New("it ended")
	}
	return e
}

// fail ends the relay for everything that goes by it.
func (r *Relay) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
		close(r.done)
		r.conn.uncount(r.open)
	}
}

// begin counts a stream that is about to be opened.
func (r *Relay) begin(op string) error {
	if err := r.conn.count(op); err != nil {
		return err
	}
	r.mu.Lock()
	ended := r.err != nil
	if !ended {
		r.open++
	}
	r.mu.Unlock()
	if ended {
		r.conn.uncount(1)
		return r.ended(op)
	}
	return nil
}

// finish undoes begin.
func (r *Relay) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open--
	if r.err == nil {
		r.conn.uncount(1)
	}
}

// Program is what a relay says that it is.
type Program struct {
	Version  string // of the program; empty if it did not say
	Platform string // os/arch as Go names them; empty if it did not say
}

// Program returns what the relay said that it is. It is foreign text, but short and printable.
func (r *Relay) Program() Program { return r.program }

// Done returns a channel that is closed when the relay has ended.
func (r *Relay) Done() <-chan struct{} { return r.done }

// Err returns nil while the relay lives, then why it ended: a [*RelayError], or the connection's error.
func (r *Relay) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Streams returns how many processes and sockets are open by the relay, or being opened.
func (r *Relay) Streams() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open
}

// ended returns the error for op on a relay whose session has ended.
func (r *Relay) ended(op string) error {
	<-r.done // soon: watch is at it
	err := r.Err()
	if first := (*RelayError)(nil); errors.As(err, &first) {
		return &RelayError{Op: op, Err: first}
	}
	return r.conn.ended(op)
}

// alive returns nil, or the error for op if the relay's session has ended.
func (r *Relay) alive(op string) error {
	if r.session.IsClosed() {
		return r.ended(op)
	}
	return nil
}

func clip(p []byte, most int) []byte { return p[:min(len(p), most)] }
