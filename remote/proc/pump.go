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

	// pumpTurn is how many bytes a pump carries between pauses of pumpPause. A pump that is always busy would keep a
	// processor to itself: the runtime polls the network only when a processor is idle, or after 10 ms.
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

	err atomic.Pointer[error] // the first error, or nil
}

// newPump returns a pump and the end of the pipe for the command. The caller closes that end.
func newPump(name string, to io.Writer) (*pump, *os.File, error) {
	var fds [2]int
	err := unix.Pipe2(fds[:], unix.O_CLOEXEC)
	if err == nil {
		// Only our end: the command expects a blocking one.
		err = unix.SetNonblock(fds[0], true)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("make pipe of %s: %w", name, oserr.Hint(err, ""))
	}
	p := &pump{name: name, out: os.NewFile(uintptr(fds[0]), name), to: to, done: make(chan struct{})}
	return p, os.NewFile(uintptr(fds[1]), name), nil
}

// run reads until all writers have closed the pipe, or until the deadline of finish. It uses plain reads and writes:
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
				to = io.Discard // keep reading, so that the command can go on
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

// deliver writes b. It turns a panic of the Writer into an error: in this goroutine a panic would end the server.
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

// isHeld reports whether a process still has the pipe open for writing.
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

// finish waits until the pump has ended. The command's processes are gone, so the pipe ends. If one has escaped,
// DrainTimeout bounds the wait.
func (p *pump) finish() {
	_ = p.out.SetReadDeadline(time.Now().Add(DrainTimeout))
	<-p.done
}
