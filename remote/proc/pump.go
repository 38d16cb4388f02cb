package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/oserr"
)

const (
	pumpBuffer = 32 << 10

	// A pump that is always busy would keep its processor to itself: the runtime only polls the network when a
	// processor is idle, or after 10 ms. So the pump pauses for pumpPause after every pumpTurn bytes.
	pumpTurn  = 1 << 20
	pumpPause = 100 * time.Microsecond
)

// pumpBuffers holds the buffers of pumps, *[pumpBuffer]byte.
var pumpBuffers = sync.Pool{New: func() any { return new([pumpBuffer]byte) }}

// pump carries one stream of a command's output to its Writer.
type pump struct {
	name string // "stdout"
	out  *os.File
	to   io.Writer
	done chan struct{} // closed once the pump has ended

	err atomic.Pointer[error] // the first; nil if there is none
}

// newPump returns a pump and the end the command writes to, which the caller closes.
func newPump(name string, to io.Writer) (*pump, *os.File, error) {
	var fds [2]int
	err := unix.Pipe2(fds[:], unix.O_CLOEXEC)
	if err == nil {
		// Our end alone: the command expects a blocking one.
		err = unix.SetNonblock(fds[0], true)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("make pipe of %s: %w", name, err)
	}
	p := &pump{name: name, out: os.NewFile(uintptr(fds[0]), name), to: to, done: make(chan struct{})}
	return p, os.NewFile(uintptr(fds[1]), name), nil
}

// run reads until every writer has closed the pipe, or until the deadline that finish sets. It only reads and writes:
// io.Copy may splice(2), which spins while a pipe's reader stalls.
func (p *pump) run() {
	defer close(p.done)
	defer p.out.Close()
	buf, _ := pumpBuffers.Get().(*[pumpBuffer]byte)
	defer pumpBuffers.Put(buf)
	to := p.to
	pause := time.NewTimer(0)
	defer pause.Stop()
	<-pause.C
	for left := pumpTurn; ; {
		n, err := p.out.Read(buf[:])
		if left -= n; left < 0 {
			left = pumpTurn
			pause.Reset(pumpPause)
			<-pause.C
		}
		if n > 0 {
			if err := deliver(to, buf[:n]); err != nil {
				p.fail(fmt.Errorf("write %s: %w", p.name, err))
				to = io.Discard // and do not hold up the command
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF), errors.Is(err, os.ErrDeadlineExceeded):
			return
		default:
			p.fail(fmt.Errorf("read %s: %w", p.name, oserr.Bare(err)))
			return
		}
	}
}

// deliver writes b. It returns a panic as an error: in this goroutine a panic would end the server.
func deliver(to io.Writer, b []byte) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("internal error of the step runner: %v", v)
		}
	}()
	n, err := to.Write(b)
	if err == nil && n != len(b) {
		err = io.ErrShortWrite
	}
	return err
}

// isHeld reports whether a process can still write to the pipe.
func (p *pump) isHeld() (held bool) {
	conn, err := p.out.SyscallConn()
	if err != nil {
		return false // the pump has ended
	}
	err = conn.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd)}}
		_, err := unix.Poll(fds, 0)
		held = err != nil || fds[0].Revents&unix.POLLHUP == 0
	})
	return held && err == nil
}

func (p *pump) fail(err error) {
	p.err.CompareAndSwap(nil, &err)
}

// finish waits until the pump has ended. Every writer should be gone, so the pipe ends. If a process has got away,
// DrainTimeout bounds the wait.
func (p *pump) finish() {
	_ = p.out.SetReadDeadline(time.Now().Add(DrainTimeout))
	<-p.done
}
