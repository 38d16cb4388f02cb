package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	pumpBuffer = 32 << 10

	// A pump that has as much to do as a processor can would have it for itself: the runtime looks for what
	// others wait for only when it has nothing else to do, or 10 ms have passed. So it pauses that often.
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

	mu  sync.Mutex // guards the following
	err error
}

// newPump returns a pump and the end the command writes to, which the caller closes.
func newPump(name string, to io.Writer) (*pump, *os.File, error) {
	var fds [2]int
	err := unix.Pipe2(fds[:], unix.O_CLOEXEC)
	if err == nil {
		// Our end alone. One that does not block would be news to the command.
		err = unix.SetNonblock(fds[0], true)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("make pipe of %s: %w", name, err)
	}
	p := &pump{name: name, out: os.NewFile(uintptr(fds[0]), name), to: to, done: make(chan struct{})}
	return p, os.NewFile(uintptr(fds[1]), name), nil
}

// run reads until nobody can write any more, or finish says it is enough. It reads and writes, and
// nothing else: io.Copy may splice(2), which spins while a pipe's reader stalls.
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
				to = io.Discard // the command must not be held up
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF), errors.Is(err, os.ErrDeadlineExceeded):
			return
		default:
			p.fail(fmt.Errorf("read %s: %w", p.name, bare(err)))
			return
		}
	}
}

// deliver writes b. A panic is an error like others: in this goroutine it would end all that the server does.
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

func (p *pump) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
}

func (p *pump) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// finish waits until the pump has ended. All who could write should be gone, so there is an end to what
// can be read; if there is not, because a process got away, DrainTimeout is.
func (p *pump) finish() {
	_ = p.out.SetReadDeadline(time.Now().Add(DrainTimeout))
	<-p.done
}
