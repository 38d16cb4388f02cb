package proc

import (
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/oserr"
)

// errShim is the error of a shim that ended too early, or is stuck.
var errShim = errors.New("the shim that held it ended before it")

// listen handles the shim's messages until the shim ends. Only this goroutine sets the fields that started, exited and
// gone announce.
func (p *Process) listen() {
	defer close(p.gone)
	left, err := p.hear()
	if !errors.Is(err, io.EOF) {
		p.abandon() // it broke the protocol
	}
	p.control.close()
	state, waitErr := p.shim.Wait()
	forgetShim(p)
	if waitErr != nil || !state.Success() {
		left += uint64(killStrays(killTimeout)) // the processes that the shim held
	}
	if p.exitedAt.IsZero() {
		// The kernel has killed the command with its shim, but not the rest of its process group.
		if p.leader != 0 {
			_ = unix.Kill(-p.leader, unix.SIGKILL)
		}
		p.exitErr = errShim
		p.setExited()
	}
	if p.leader == 0 && p.failed == nil {
		close(p.started)
	}
	switch {
	case left > 0:
		p.shimErr = fmt.Errorf("%d processes could not be killed", left)
	case waitErr != nil:
		p.shimErr = fmt.Errorf("wait for its shim: %w", oserr.Bare(waitErr))
	case !state.Success():
		p.shimErr = fmt.Errorf("%w: %v", errShim, state)
	}
}

// hear handles messages of the shim until the channel ends: then the error is io.EOF. It returns how many processes the
// shim could not kill.
func (p *Process) hear() (left uint64, err error) {
	for {
		kind, payload, err := p.control.receive(maxReply)
		if err != nil {
			return left, err
		}
		switch {
		case kind == frameStarted && p.leader == 0 && p.failed == nil:
			if p.leader, err = decodeStarted(payload); err == nil {
				close(p.started)
			}
		case kind == frameFailed && p.leader == 0 && p.failed == nil:
			if p.failed, err = decodeFailure(payload); err == nil {
				close(p.started)
			}
		case kind == frameExited && p.leader != 0 && p.exitedAt.IsZero():
			if p.exit, err = decodeExited(payload); err == nil {
				p.setExited()
			}
		case kind == frameLeft:
			var v []uint64
			if v, err = numbers(payload, 1); err == nil {
				left = v[0]
			}
		default:
			err = fmt.Errorf("message %q out of turn", kind)
		}
		if err != nil {
			return left, err
		}
	}
}

func (p *Process) setExited() {
	p.exitedAt = time.Now()
	close(p.exited)
}

// tell sends the shim a message without content. A shim that is gone needs no message.
func (p *Process) tell(kind byte) { _ = p.control.send(kind, nil) }

// abandon kills the shim, which ends the command too.
func (p *Process) abandon() { _ = p.shim.Kill() } // fails only if it has ended

// abandonUnlessExited kills a shim that does not report the end of a command that it was told to kill.
func (p *Process) abandonUnlessExited() {
	select {
	case <-p.exited:
	default:
		p.abandon()
	}
}
