package mux

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stepmux/stepmux/internal/coalesce"
	"github.com/stepmux/stepmux/internal/wire"
)

const (
	// relayReadSize and relayWriteSize are how much is read from, or handed to, the SSH library at once.
	relayReadSize  = 128 << 10
	relayWriteSize = 128 << 10
)

// relayLink is the relay's session channel as yamux wants it: one that Close wakes whatever the peer does.
// Two goroutines of the Conn do the waiting.
type relayLink struct {
	ch  *channel
	out *coalesce.Writer

	filled chan piece  // from the reader
	empty  chan []byte // to it
	piece  piece       // owned by Read
	taken  int         // of piece.data

	last   atomic.Int64 // when something last came, nanoseconds since start
	start  time.Time
	closed chan struct{}
	once   sync.Once

	mu  sync.Mutex // guards the following
	err error      // why reading ended, or what came that makes no sense
}

func newRelayLink(ch *channel) *relayLink {
	l := &relayLink{
		ch:     ch,
		out:    coalesce.New(ch.ssh, relayWriteSize, wire.YamuxBodyFollows),
		filled: make(chan piece),
		empty:  make(chan []byte, 2),
		start:  time.Now(),
		closed: make(chan struct{}),
	}
	l.empty <- make([]byte, relayReadSize)
	l.empty <- make([]byte, relayReadSize)
	spawned := ch.conn.spawn(l.readLoop) && ch.conn.spawn(func() {
		_ = l.out.Run() // its error is that of the next Write
	})
	if !spawned {
		_ = l.Close() // always nil
	}
	return l
}

// readLoop reads one piece ahead.
func (l *relayLink) readLoop() {
	defer close(l.filled)
	for {
		var buf []byte
		select {
		case buf = <-l.empty:
		case <-l.closed:
			return
		}
		n, err := l.ch.ssh.Read(buf)
		if n > 0 {
			l.last.Store(int64(time.Since(l.start)))
		}
		if err != nil {
			err = l.ch.readError(err)
			l.setFailure(err)
		}
		select {
		case l.filled <- piece{buf[:n], err}:
		case <-l.closed:
			return
		}
		if err != nil {
			return
		}
	}
}

// Read implements io.Reader.
func (l *relayLink) Read(p []byte) (int, error) {
	for l.taken == len(l.piece.data) {
		if l.piece.err != nil {
			return 0, l.piece.err
		}
		if l.piece.data != nil {
			l.empty <- l.piece.data[:cap(l.piece.data)] // has room
			l.piece.data, l.taken = nil, 0
		}
		select {
		case next, ok := <-l.filled:
			if !ok {
				return 0, io.ErrClosedPipe
			}
			l.piece, l.taken = next, 0
		case <-l.closed:
			return 0, io.ErrClosedPipe
		}
	}
	n := copy(p, l.piece.data[l.taken:])
	l.taken += n
	return n, nil
}

// Write implements io.Writer.
func (l *relayLink) Write(p []byte) (int, error) {
	n, err := l.out.Write(p)
	if err != nil {
		err = fmt.Errorf("write: %w", err)
	}
	return n, err
}

// Close wakes what waits. The channel is its process's to close.
func (l *relayLink) Close() error {
	l.once.Do(func() {
		close(l.closed)
		_ = l.out.Close() // always nil
	})
	return nil
}

// heard returns when something last came.
func (l *relayLink) heard() time.Time { return l.start.Add(time.Duration(l.last.Load())) }

func (l *relayLink) setFailure(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

// failure returns why nothing comes any more, nil if that is not so.
func (l *relayLink) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// bufferedLink is a relayLink with what was read of it ahead, and guarded.
type bufferedLink struct {
	*relayLink
	in *wire.RelayGuard
}

func (l *bufferedLink) Read(p []byte) (int, error) {
	n, err := l.in.Read(p)
	if errors.Is(err, wire.ErrRelayProtocol) {
		l.setFailure(err)
	}
	return n, err
}
