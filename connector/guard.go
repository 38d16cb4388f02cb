package connector

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux"
)

const (
	// stopMargin is what the end of what is stopped may take beyond its grace before it is given up.
	stopMargin = 750 * time.Millisecond
	// stuckInput is how long the end of stdin may take to be sent.
	stuckInput = 250 * time.Millisecond
	// lastPatience is how long a channel may stay open after the end was told: processes that were left
	// behind and not found may hold it.
	lastPatience = 2 * time.Second
	// frameSize is the largest piece of a framed stdin.
	frameSize = 64 << 10
)

// errNotSeen is the error of what was stopped and not seen to end.
var errNotSeen = errors.New("it was stopped, and was not seen to end")

// guarded is a process on the VM that ends when we let go of it, whatever it is started by: `steps script`
// or a wrapper, which tell its end, or, for a native one, the relay.
type guarded struct {
	process *mux.Process
	grace   time.Duration
	native  bool
	framed  bool // stdin goes in pieces

	out  *wire.EndScanner // of stdout; owned by Read, like rest
	rest []byte
	err  *guardStderr

	stopOnce  sync.Once
	closed    chan struct{} // closed once nothing more is to be had from it
	closeOnce sync.Once
}

// guardSpec says what to start: argv is told the word that finds what it starts.
type guardSpec struct {
	argv   func(mark string) []string
	line   string // instead of argv: native, by the login shell
	framed bool
	stderr io.Writer
	grace  time.Duration
}

// startGuarded starts a process. The caller calls close.
func startGuarded(ctx context.Context, starter Starter, spec guardSpec) (*guarded, error) {
	key, mark := newKey(), newKey()[:16]
	g := &guarded{
		grace:  spec.grace,
		native: spec.line != "",
		framed: spec.framed,
		out:    wire.NewEndScanner(key),
		err:    &guardStderr{to: spec.stderr, scanner: wire.NewEndScanner(key), told: make(chan struct{})},
		closed: make(chan struct{}),
	}
	cmd := mux.Command{Line: spec.line, Stderr: spec.stderr}
	if !g.native {
		cmd.Argv, cmd.Stderr = spec.argv(mark), g.err
	}
	var err error
	if g.process, err = starter.Start(ctx, cmd); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	if !g.native {
		defer context.AfterFunc(ctx, func() { g.process.Close() })() // a peer that takes nothing holds up no longer
		_, _ = io.WriteString(g.process, key+"\n")                   // what could not be sent shows in the end
	}
	return g, nil
}

// newKey returns what nobody can guess.
func newKey() string {
	var b [wire.EndKeySize / 2]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Read reads stdout. It returns io.EOF once all that was written before the end has been read.
func (g *guarded) Read(p []byte) (int, error) {
	for {
		if len(g.rest) > 0 {
			n := copy(p, g.rest)
			g.rest = g.rest[n:]
			return n, nil
		}
		if _, ended := g.out.End(); ended {
			return 0, io.EOF
		}
		n, err := g.process.Read(p)
		if g.native {
			return n, err
		}
		pass := g.out.Scan(p[:n])
		if err != nil {
			pass = append(pass[:len(pass):len(pass)], g.out.Rest()...)
		}
		n = copy(p, pass)
		g.rest = append(g.rest[:0], pass[n:]...)
		if n > 0 {
			return n, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// Write writes to stdin.
func (g *guarded) Write(p []byte) (int, error) {
	if !g.framed {
		return g.process.Write(p)
	}
	total := 0
	for len(p) > 0 {
		n := min(len(p), frameSize)
		frame := append(strconv.AppendInt(make([]byte, 0, n+8), int64(n), 10), '\n')
		if _, err := g.process.Write(append(frame, p[:n]...)); err != nil {
			return total, err
		}
		total += n
		p = p[n:]
	}
	return total, nil
}

// closeWrite ends stdin; only for a native or framed one, to the others that means that they are to end.
func (g *guarded) closeWrite() error {
	if g.framed {
		_, err := io.WriteString(g.process, "0\n")
		return err
	}
	return g.process.CloseWrite()
}

// over returns when the end is known, or will not be, or ctx ends. Output may still come.
func (g *guarded) over(ctx context.Context) error {
	select {
	case <-g.err.told:
	case <-g.process.Exited():
	case <-g.closed:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// exit returns how it ended, once over has returned nil.
func (g *guarded) exit() (code int, err error) {
	if end, told := g.err.end(); told {
		if end.Stage == "" {
			return end.Code, nil
		}
		return 0, &MachineError{Stage: end.Stage, Text: end.Text, Hint: machineHint(end.Stage)}
	}
	select {
	case <-g.process.Exited():
	default:
		return 0, errNotSeen
	}
	err = g.process.Err()
	code = exitCode(err)
	switch {
	case g.native && code >= 0:
		return code, nil
	case code >= 0:
		if err == nil {
			err = errors.New("it ended without a word")
		}
		return 0, &MachineError{Stage: stageGuard, Text: g.err.lastLines(), Hint: machineHint(stageGuard), Err: err}
	default:
		return 0, err
	}
}

// run passes stdout on and waits for the end. When ctx ends, or an output fails, it stops the process. The error
// is ctx's, what out failed with, or that of exit.
func (g *guarded) run(ctx context.Context, out *outputs) (code int, err error) {
	var reading sync.WaitGroup
	defer reading.Wait()
	defer g.close()
	defer out.giveUp()
	complete := make(chan struct{})
	var cut error       // why stdout is not complete; valid then
	reading.Go(func() { //nolint:contextcheck // what is stopped is read to its end
		defer close(complete)
		cut = drain(g, out.writer(out.stdout))
		_ = g.over(context.Background()) // soon: stdout has ended, or we have closed it
	})
	select {
	case <-complete:
	case <-out.failed.Done():
		g.stop(complete)
		return 0, out.failure()
	case <-ctx.Done():
		g.stop(complete)
		return 0, ctx.Err()
	}
	g.err.flush()
	if err := out.flush(ctx); err != nil {
		return 0, err
	}
	if out.failed.Err() != nil {
		return 0, out.failure()
	}
	code, err = g.exit()
	if err == nil && isLost(cut) {
		return 0, cut // its end, which stderr told, came first
	}
	return code, err
}

// stop ends it: SIGTERM to its process group, the grace, SIGKILL. It returns, and has let go of it, when it is
// seen gone and read is closed, if read is not nil, or when that has taken so long that it is given up; the
// VM's end goes on by itself. Output must be read meanwhile.
func (g *guarded) stop(read <-chan struct{}) {
	g.stopOnce.Do(func() {
		var asking sync.WaitGroup
		defer asking.Wait()
		defer g.shut() // wakes it
		deadline := time.NewTimer(g.grace + stopMargin)
		defer deadline.Stop()
		g.ask(&asking)
		kill := (<-chan time.Time)(nil)
		if g.native {
			timer := time.NewTimer(g.grace)
			defer timer.Stop()
			kill = timer.C
		}
		for exited := g.process.Exited(); exited != nil || read != nil; {
			select {
			case <-exited:
				exited = nil
			case <-read:
				read = nil
			case <-kill:
				asking.Go(func() { _ = g.process.Signal("KILL") }) // an error means that it has ended
			case <-deadline.C:
				return
			}
		}
	})
}

// ask asks it to end.
func (g *guarded) ask(asking *sync.WaitGroup) {
	asked := make(chan struct{})
	asking.Go(func() {
		defer close(asked)
		if g.native {
			_ = g.process.Signal("TERM") // an error means that it has ended
		}
		_ = g.process.CloseWrite() // as above
	})
	stuck := time.NewTimer(stuckInput)
	defer stuck.Stop()
	select {
	case <-asked:
	case <-g.process.Exited():
	case <-stuck.C:
		// Nobody reads its stdin, behind which the end of stdin waits. That nobody hears it any more ends it
		// too.
		_ = g.process.Close() // always nil
	}
}

// close lets go of a process that has ended or been stopped.
func (g *guarded) close() {
	timer := time.NewTimer(lastPatience)
	defer timer.Stop()
	select {
	case <-g.process.Exited():
	case <-g.closed:
	case <-timer.C:
	}
	g.shut()
}

// shut closes the channel.
func (g *guarded) shut() {
	g.closeOnce.Do(func() { close(g.closed) })
	_ = g.process.Close() // always nil
}

// guardStderr takes the stderr of a guarded process: it passes on what is not the guard's own and keeps the
// last of it for an error message.
type guardStderr struct {
	to io.Writer

	mu      sync.Mutex // guards the following
	scanner *wire.EndScanner
	tail    []byte

	told chan struct{} // closed once the end was told
}

// Write never fails: what comes after an output that failed still matters.
func (s *guardStderr) Write(p []byte) (int, error) {
	s.mu.Lock()
	_, before := s.scanner.End()
	pass := s.scanner.Scan(p)
	s.tail = tail.Append(s.tail, pass)
	_, after := s.scanner.End()
	s.mu.Unlock()
	if len(pass) > 0 {
		_, _ = s.to.Write(pass)
	}
	if after && !before {
		close(s.told)
	}
	return len(p), nil
}

// end returns the end if it was told.
func (s *guardStderr) end() (wire.End, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.scanner.End()
}

// lastLines returns the last of what came, for an error message.
func (s *guardStderr) lastLines() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return tail.Lines(append(s.tail[:len(s.tail):len(s.tail)], s.scanner.Rest()...))
}

// flush passes on what was held back, once the process has exited.
func (s *guardStderr) flush() {
	s.mu.Lock()
	rest := s.scanner.Rest()
	s.tail = tail.Append(s.tail, rest)
	s.mu.Unlock()
	if len(rest) > 0 {
		_, _ = s.to.Write(rest)
	}
}
