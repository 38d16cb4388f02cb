package relay

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/alive"
	"github.com/stepmux/stepmux/internal/coalesce"
	"github.com/stepmux/stepmux/internal/wire"
)

const (
	// linkRead is how much is read from the carrier at once.
	linkRead = 128 << 10
	// linkWrite is how much may wait for the carrier. Streams reserve their room in half of it; the rest is for yamux's
	// own frames and for frames of a few bytes.
	linkWrite = 384 << 10
)

// errTakesNothing ends a relay that does not read its input.
var errTakesNothing = errors.New("it takes no input")

// link is the carrier as yamux needs it: Close wakes Read and Write, and Write does not wait if its caller has reserved
// the room. Two goroutines do the waiting: they end with the carrier.
type link struct {
	carrier Duplex
	out     *coalesce.Writer

	filled chan piece  // from the reader
	empty  chan []byte // to the reader
	piece  piece       // owned by Read
	taken  int         // bytes of piece.data that Read has returned

	pulse  alive.Pulse // of the carrier
	closed chan struct{}
	once   sync.Once

	mu  sync.Mutex // guards the following
	err error      // why reading ended, or which byte was wrong
}

// piece is the result of one read of the carrier.
type piece struct {
	data []byte
	err  error
}

func newLink(carrier Duplex, stall time.Duration, wg *sync.WaitGroup) *link {
	l := &link{
		carrier: carrier,
		filled:  make(chan piece),
		empty:   make(chan []byte, 2),
		closed:  make(chan struct{}),
	}
	l.out = coalesce.New(writerFunc(func(p []byte) (int, error) {
		stalled := time.AfterFunc(stall, func() {
			l.setFailure(fmt.Errorf("%w for %v", errTakesNothing, stall))
			_ = l.Close() // always nil
		})
		defer stalled.Stop()
		return carrier.Write(p)
	}), linkWrite, wire.YamuxBodyFollows)
	l.empty <- make([]byte, linkRead)
	l.empty <- make([]byte, linkRead)
	wg.Go(l.readLoop)
	wg.Go(func() {
		if l.out.Run() == nil {
			_ = carrier.CloseWrite() // an error means that the carrier has ended
		}
	})
	return l
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// readLoop reads one piece ahead.
func (l *link) readLoop() {
	defer close(l.filled)
	for {
		var buf []byte
		select {
		case buf = <-l.empty:
		case <-l.closed:
			return
		}
		n, err := l.carrier.Read(buf)
		if n > 0 {
			l.pulse.Beat()
		}
		if err != nil {
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
func (l *link) Read(p []byte) (int, error) {
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
func (l *link) Write(p []byte) (int, error) {
	n, err := l.out.Write(p)
	if err != nil {
		err = fmt.Errorf("write: %w", err)
	}
	return n, err
}

// Close wakes calls that wait. It does not close the carrier. It returns nil.
func (l *link) Close() error {
	l.once.Do(func() {
		close(l.closed)
		_ = l.out.Close() // always nil
	})
	return nil
}

// setFailure keeps the first failure.
func (l *link) setFailure(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
}

// failure returns why the link is of no more use, and nil if it is of use.
func (l *link) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// guardedLink is a link whose input is checked, and begins with the bytes that were read ahead.
type guardedLink struct {
	*link
	in *wire.RelayGuard
}

func (l *guardedLink) Read(p []byte) (int, error) {
	n, err := l.in.Read(p)
	if errors.Is(err, wire.ErrRelayProtocol) {
		l.setFailure(err)
	}
	return n, err
}
