package instance

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/stepmux/stepmux/connector/script"
)

const (
	// connRead is how much is read ahead.
	connRead = 32 << 10
	// connWrite is how much is on its way of a Write at a time.
	connWrite = 64 << 10
)

// CommandConn is a connection to a command's standard input and output. Close ends the command: SIGTERM to
// its process group on the instance, the Grace of the configuration, SIGKILL; it waits until the command is
// seen gone, at most a second longer than the grace. Read returns io.EOF when the command's output ends,
// however the command did: Wait tells.
type CommandConn struct {
	*streamConn
	running *script.Running
}

var _ net.Conn = (*CommandConn)(nil)

// Wait waits until the command has ended, or ctx has. It returns nil for exit code 0; for another a
// [*BuildError] of the reason ScriptFailure with it. Output that nobody reads may hold the end up. It may be
// called again, at any time and by several.
func (c *CommandConn) Wait(ctx context.Context) error {
	code, err := c.running.Wait(ctx)
	return classify(ctx, exitError(code, err))
}

// halfConn is a streamConn to what knows a half-close.
type halfConn struct {
	*streamConn
	stream interface{ CloseWrite() error }
}

// CloseWrite tells the other end that no more comes; reading goes on.
func (c *halfConn) CloseWrite() error { return c.stream.CloseWrite() }

// streamConn makes a stream a net.Conn: one with deadlines. As only its end wakes what waits on a stream,
// goroutines do the waiting: one that reads, once Read or Close was called, and one for a Write. Close waits
// for them.
type streamConn struct {
	stream        io.ReadWriter
	shut          func() // ends the stream, which wakes what waits on it; what comes must be read meanwhile
	local, remote net.Addr

	readDeadline, writeDeadline *deadline

	startReading sync.Once
	filled       chan chunk    // from the goroutine that reads
	spent        chan struct{} // to it: the chunk is used up

	reading sync.Mutex // guards the following
	current chunk

	writing sync.Mutex // guards the following
	pending chan error // of a write that its caller did not wait for, else nil

	closed    chan struct{} // closed when Close begins
	closeOnce sync.Once
	wg        sync.WaitGroup // added to under mu, not once closed is closed

	mu   sync.Mutex // guards the following
	told func()     // at the end of Close
}

// chunk is what a read gave.
type chunk struct {
	data []byte
	err  error
}

func newStreamConn(stream io.ReadWriter, shut func(), local, remote net.Addr) *streamConn {
	return &streamConn{
		stream:        stream,
		shut:          shut,
		local:         local,
		remote:        remote,
		readDeadline:  newDeadline(),
		writeDeadline: newDeadline(),
		filled:        make(chan chunk),
		spent:         make(chan struct{}, 1),
		closed:        make(chan struct{}),
	}
}

// Read implements net.Conn.
func (c *streamConn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	c.startReading.Do(func() { c.spawn(c.read) })
	if done(c.closed) {
		return 0, net.ErrClosed
	}
	passed := c.readDeadline.wait()
	if done(passed) {
		return 0, os.ErrDeadlineExceeded
	}
	if len(c.current.data) == 0 && c.current.err == nil {
		select {
		case c.current = <-c.filled:
		case <-passed:
			return 0, os.ErrDeadlineExceeded
		case <-c.closed:
			return 0, net.ErrClosed
		}
	}
	n := copy(p, c.current.data)
	c.current.data = c.current.data[n:]
	switch {
	case len(c.current.data) > 0:
		return n, nil
	case c.current.err != nil:
		if n > 0 {
			return n, nil
		}
		return 0, c.current.err
	default:
		c.spent <- struct{}{} // has room
		return n, nil
	}
}

// read reads until the stream ends. Once Close was called it drops what comes.
func (c *streamConn) read() {
	buf := make([]byte, connRead)
	for {
		n, err := c.stream.Read(buf)
		if n > 0 || err != nil {
			select {
			case c.filled <- chunk{buf[:n], err}:
				if err != nil {
					return
				}
				select {
				case <-c.spent:
				case <-c.closed:
					buf = make([]byte, connRead) // a Read may still copy from the other
				}
			case <-c.closed:
			}
		}
		if err != nil {
			return
		}
	}
}

// Write implements net.Conn. Of what it had not sent when its deadline passed, or when it was closed, some
// may still arrive.
func (c *streamConn) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	total := 0
	for {
		if err := c.awaitPending(); err != nil {
			return total, err
		}
		if len(p) == 0 {
			return total, nil
		}
		piece := append([]byte(nil), p[:min(len(p), connWrite)]...) // the caller may use p again when we return
		written := make(chan error, 1)
		if !c.spawn(func() {
			_, err := c.stream.Write(piece)
			written <- err
		}) {
			return total, net.ErrClosed
		}
		c.pending = written
		if err := c.awaitPending(); err != nil {
			return total, err
		}
		total += len(piece)
		p = p[len(piece):]
	}
}

// awaitPending waits for a write that is under way.
func (c *streamConn) awaitPending() error {
	passed := c.writeDeadline.wait()
	switch {
	case done(c.closed):
		return net.ErrClosed
	case done(passed):
		return os.ErrDeadlineExceeded
	case c.pending == nil:
		return nil
	}
	select {
	case err := <-c.pending:
		c.pending = nil
		return err
	case <-passed:
		return os.ErrDeadlineExceeded
	case <-c.closed:
		return net.ErrClosed
	}
}

// spawn runs fn in a goroutine that Close waits for, unless Close was called.
func (c *streamConn) spawn(fn func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if done(c.closed) {
		return false
	}
	c.wg.Go(fn)
	return true
}

// Close implements net.Conn. Read and Write that wait return net.ErrClosed. It returns nil.
func (c *streamConn) Close() error {
	c.closeOnce.Do(func() {
		c.startReading.Do(func() { c.spawn(c.read) }) // what comes must be read
		c.mu.Lock()
		close(c.closed)
		c.mu.Unlock()
		c.shut()
		c.wg.Wait()
		c.readDeadline.set(time.Time{})
		c.writeDeadline.set(time.Time{})
		c.mu.Lock()
		told := c.told
		c.mu.Unlock()
		if told != nil {
			told()
		}
	})
	return nil
}

// onClose sets who is told of the end.
func (c *streamConn) onClose(told func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told = told
}

// LocalAddr implements net.Conn: network "ssh" and the instance's ID.
func (c *streamConn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn: what was dialed, or network "exec" and the command.
func (c *streamConn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *streamConn) SetDeadline(t time.Time) error {
	return errorOf(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *streamConn) SetReadDeadline(t time.Time) error {
	if done(c.closed) {
		return net.ErrClosed
	}
	c.readDeadline.set(t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *streamConn) SetWriteDeadline(t time.Time) error {
	if done(c.closed) {
		return net.ErrClosed
	}
	c.writeDeadline.set(t)
	return nil
}

// errorOf returns the first error.
func errorOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// deadline is a time that can be moved while others wait for it.
type deadline struct {
	mu     sync.Mutex // guards the following
	timer  *time.Timer
	passed chan struct{} // closed when it has passed
}

func newDeadline() *deadline { return &deadline{passed: make(chan struct{})} }

// wait returns a channel that is closed when the deadline has passed, also if that is moved, unless it has
// passed and is moved then.
func (d *deadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.passed
}

// set moves the deadline; the zero time is none.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.passed // the timer is about to close it, or has
	}
	d.timer = nil
	if done(d.passed) {
		d.passed = make(chan struct{})
	}
	switch left := time.Until(t); {
	case t.IsZero():
	case left <= 0:
		close(d.passed)
	default:
		passed := d.passed
		d.timer = time.AfterFunc(left, func() { close(passed) })
	}
}

func done(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
