package proc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"syscall"
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
	p.control.Close()
	state, waitErr := p.shim.Wait()
	forgetShim(p)
	if waitErr != nil || !state.Success() {
		left += killStrays(killTimeout) // the processes that the shim held
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

// hear handles reports of the shim until the channel ends: then the error is io.EOF. It returns how many processes the
// shim could not kill.
func (p *Process) hear() (left int, err error) {
	for {
		var r report
		if err := binary.Read(p.control, binary.LittleEndian, &r); err != nil {
			return left, err
		}
		begins := p.leader == 0 && p.failed == nil
		switch {
		case r.Kind == reportStarted && begins && r.PID > 1: // a signal to "-1" goes to every process
			p.leader = int(r.PID)
			close(p.started)
		case r.Kind == reportFailed && begins:
			p.failed = &failure{r.At, syscall.Errno(r.Errno)}
			close(p.started)
		case r.Kind == reportExited && p.leader != 0 && p.exitedAt.IsZero():
			p.exit = r.exit()
			p.setExited()
		case r.Kind == reportLeft:
			left = int(r.Left)
		default:
			return left, errMessage
		}
	}
}

func (p *Process) setExited() {
	p.exitedAt = time.Now()
	close(p.exited)
}

// tell sends the shim a message, and continues a shim that was stopped. One that is gone needs neither.
func (p *Process) tell(message byte) {
	_, _ = p.control.Write([]byte{message})
	p.resume()
}

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
