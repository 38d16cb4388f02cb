package command

import (
	"io"
	"sync"

	"github.com/stepmux/stepmux/instance"
)

// Inputs are the input and the signals of a command. Its methods may be called by any goroutine.
type Inputs struct {
	most int // bytes that are held

	mu      sync.Mutex // guards the following
	changed *sync.Cond // of mu
	held    []byte
	ended   bool // no more input comes
	signals []string
	stopped bool // the command has ended
}

// NewInputs returns inputs that hold at most so many bytes. The caller calls Stop.
func NewInputs(most int) *Inputs {
	in := &Inputs{most: most}
	in.changed = sync.NewCond(&in.mu)
	return in
}

// Write takes input. It waits while too much is held.
func (in *Inputs) Write(p []byte) (int, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for len(in.held) > 0 && len(in.held)+len(p) > in.most && !in.stopped {
		in.changed.Wait()
	}
	if in.stopped || in.ended {
		return 0, io.ErrClosedPipe
	}
	in.held = append(in.held, p...)
	in.changed.Broadcast()
	return len(p), nil
}

// End says that no more input comes.
func (in *Inputs) End() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.ended = true
	in.changed.Broadcast()
}

// maxSignals bounds the signals that a command has not got yet. Later ones are dropped.
const maxSignals = 16

// Signal takes a signal, by its name without SIG.
func (in *Inputs) Signal(name string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.signals) < maxSignals {
		in.signals = append(in.signals, name)
		in.changed.Broadcast()
	}
}

// Stop ends feed and send, and all waits.
func (in *Inputs) Stop() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.stopped = true
	in.changed.Broadcast()
}

// feed passes the input on to a command, until Stop is called.
func (in *Inputs) feed(to *instance.CommandConn) {
	for {
		in.mu.Lock()
		for len(in.held) == 0 && !in.ended && !in.stopped {
			in.changed.Wait()
		}
		piece, ended, stopped := in.held, in.ended, in.stopped
		if len(piece) > Piece {
			piece, ended = piece[:Piece], false
		}
		in.mu.Unlock()
		if stopped {
			return
		}
		_, err := to.Write(piece) // fails only if the command is gone, or reads no more; then input is dropped
		in.mu.Lock()
		if in.held = in.held[len(piece):]; len(in.held) == 0 || err != nil {
			in.held = nil
		}
		ended = ended && len(in.held) == 0
		in.changed.Broadcast()
		in.mu.Unlock()
		if ended {
			_ = to.CloseWrite() // as above
			return
		}
	}
}

// send passes the signals on to a command, until Stop is called.
func (in *Inputs) send(to *instance.CommandConn) {
	for {
		in.mu.Lock()
		for len(in.signals) == 0 && !in.stopped {
			in.changed.Wait()
		}
		if in.stopped {
			in.mu.Unlock()
			return
		}
		name := in.signals[0]
		in.signals = in.signals[1:]
		in.mu.Unlock()
		_ = to.Signal(name) // it may have ended
	}
}
