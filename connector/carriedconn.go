package connector

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// carriedConn is a service's end of a connection that a process of a job has made. Conn is a pipe by which the service
// reads. Its writes go into the call directly.
type carriedConn struct {
	net.Conn
	stream pb.Reach_CarryClient
	done   <-chan struct{} // closed at the end of the call, which end ends
	end    context.CancelFunc
	files  bool       // the step runner takes parts of files
	told   chan int64 // its answers

	mu sync.Mutex // held while something is written; guards the following
	// closed is set by Close.
	closed bool

	deadlineMu sync.Mutex // guards the following
	deadline   time.Time  // of writes
}

// content is a file of which the step runner may have a copy; see [Services.Take].
type content interface {
	io.ReadSeeker
	Content() (digest string, size int64)
}

// Write implements net.Conn, as do the following. A write that is late ends the connection.
func (c *carriedConn) Write(data []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.within()()
	for len(data) > 0 {
		piece := data[:min(len(data), carried)]
		if err := c.send(&pb.CarryRequest{Data: piece}); err != nil {
			return n, err
		}
		n += len(piece)
		data = data[len(piece):]
	}
	return n, nil
}

// send sends a message. c.mu is held.
func (c *carriedConn) send(msg *pb.CarryRequest) error {
	if c.closed {
		return net.ErrClosed
	}
	err := c.stream.Send(msg)
	if errors.Is(err, io.EOF) { // the call has ended, and RecvMsg returns why
		return net.ErrClosed
	}
	return err
}

// within ends the call at the deadline, unless the function that it returns is called before.
func (c *carriedConn) within() func() bool {
	c.deadlineMu.Lock()
	defer c.deadlineMu.Unlock()
	if c.deadline.IsZero() {
		return func() bool { return true }
	}
	return time.AfterFunc(time.Until(c.deadline), c.end).Stop
}

// SetDeadline sets the deadlines of reads and of later writes.
func (c *carriedConn) SetDeadline(t time.Time) error {
	_ = c.SetWriteDeadline(t) // it returns no error
	return c.SetReadDeadline(t)
}

// SetWriteDeadline sets the deadline of later writes.
func (c *carriedConn) SetWriteDeadline(t time.Time) error {
	c.deadlineMu.Lock()
	defer c.deadlineMu.Unlock()
	c.deadline = t
	return nil
}

// Close closes the connection. Bytes that were written arrive, unless a write goes on.
func (c *carriedConn) Close() error {
	err := c.Conn.Close()
	if !c.mu.TryLock() { // it may wait for a process that reads nothing
		c.end()
		return err
	}
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		_ = c.stream.CloseSend() // it returns no error
	}
	return err
}

// ReadFrom implements io.ReaderFrom.
func (c *carriedConn) ReadFrom(r io.Reader) (n int64, err error) {
	if limited, ok := r.(*io.LimitedReader); ok && c.files {
		if of, ok := limited.R.(content); ok {
			n, err = c.tell(of, limited.N)
			if limited.N -= n; err != nil {
				return n, err
			}
		}
	}
	more, err := io.CopyBuffer(writer{c}, r, make([]byte, carried))
	return n + more, err
}

// writer has no method but Write.
type writer struct{ to *carriedConn }

func (w writer) Write(data []byte) (int, error) { return w.to.Write(data) }

var errTold = errors.New("the step runner told a process more bytes than it was asked to")

// tell lets the step runner tell the process the next bytes of a file, at most length. It returns how many these are.
func (c *carriedConn) tell(of content, length int64) (n int64, err error) {
	digest, size := of.Content()
	at, err := of.Seek(0, io.SeekCurrent)
	if err != nil || digest == "" || size <= carried || length > size-at { // for little it is not worth the way
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.within()()
	if err := c.send(&pb.CarryRequest{Digest: digest, Size: size, Offset: at, Length: length}); err != nil {
		return 0, err
	}
	select {
	case n = <-c.told:
	case <-c.done:
		return 0, net.ErrClosed
	}
	if n > length {
		return 0, errTold
	}
	_, err = of.Seek(at+n, io.SeekStart)
	return n, err
}
