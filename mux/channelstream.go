package mux

import (
	"io"
	"sync"

	"github.com/stepmux/stepmux/mux/channel"
)

const (
	// sendSize is how much a stream hands to the SSH library at once: two packets, so that fewer pieces pass between
	// goroutines.
	sendSize = 64 << 10
	// chunkSize is the largest packet that the SSH library and OpenSSH exchange.
	chunkSize = 32 << 10
	// idleChunk is the size of the buffer that waits for the peer's first byte. It is small because most streams are
	// idle most of the time.
	idleChunk = 512
	// bulkChunk is the size of one read while more than a packet is waiting.
	bulkChunk = 256 << 10
)

// sends, chunks and bulks pool buffers of sendSize, chunkSize and bulkChunk bytes.
var (
	sends  = sync.Pool{New: func() any { return new([sendSize]byte) }}
	chunks = sync.Pool{New: func() any { return new([chunkSize]byte) }}
	bulks  = sync.Pool{New: func() any { return new([bulkChunk]byte) }}
)

// readBuffer is the buffer of a channel's reader. Its size follows the amount of data that arrives.
type readBuffer struct {
	small [idleChunk]byte
	large *[chunkSize]byte // nil while little data comes, and while bulk is used
	bulk  *[bulkChunk]byte // nil unless very much data comes
}

// next returns the buffer to read into.
func (b *readBuffer) next() []byte {
	switch {
	case b.bulk != nil:
		return b.bulk[:]
	case b.large != nil:
		return b.large[:]
	default:
		return b.small[:]
	}
}

// used notes that n bytes of the buffer were filled and have been read.
func (b *readBuffer) used(n int) {
	size := len(b.next())
	switch {
	case n <= idleChunk && size > idleChunk, n < chunkSize && size > chunkSize:
		b.free()
	case n < size || size == bulkChunk:
	case size == chunkSize:
		b.free()
		b.bulk = bulks.Get().(*[bulkChunk]byte)
	default:
		b.large = chunks.Get().(*[chunkSize]byte)
	}
}

// free returns the larger buffers to their pools. Idempotent.
func (b *readBuffer) free() {
	if b.large != nil {
		chunks.Put(b.large)
		b.large = nil
	}
	if b.bulk != nil {
		bulks.Put(b.bulk)
		b.bulk = nil
	}
}

// channelStream is the [channel.Transport] of an SSH channel.
//
// The SSH library's own Read and Write can only be woken by the peer, so goroutines call them: one reads, from the
// first Read on, and each piece to send has its own. Close does not wait for them; the Conn's Close does.
type channelStream struct {
	*sshChannel

	readOnce sync.Once
	filled   chan piece    // from the reader goroutine
	spent    chan struct{} // to the reader goroutine: the piece is used up
	current  piece         // owned by Read

	sent chan error // result of the goroutine that sends
	owed bool       // a send that Write did not wait for is still running; owned by Write
}

// piece is the result of one read of the channel.
type piece struct {
	data []byte
	err  error
}

func newChannelStream(ch *sshChannel) *channelStream {
	return &channelStream{
		sshChannel: ch,
		filled:     make(chan piece),
		spent:      make(chan struct{}, 1),
		sent:       make(chan error, 1),
	}
}

// Read implements [channel.Transport].
func (s *channelStream) Read(p []byte, stop <-chan struct{}) (int, error) {
	s.readOnce.Do(func() {
		if !s.conn.spawn(s.readLoop) {
			close(s.filled)
		}
	})
	for len(s.current.data) == 0 {
		if s.current.err != nil {
			return 0, s.current.err
		}
		select {
		case next, ok := <-s.filled:
			if !ok {
				next.err = s.conn.ended("read")
			}
			s.current = next
		case <-stop:
			return 0, channel.ErrStopped
		}
	}
	n := copy(p, s.current.data)
	s.current.data = s.current.data[n:]
	if len(s.current.data) == 0 && s.current.err == nil {
		s.spent <- struct{}{}
	}
	return n, nil
}

// readLoop reads the channel one piece ahead. It gives a larger buffer back only once that piece is spent. Read may
// still copy from it when Close has woken readLoop, and the buffer's next user may be a stream of another build.
func (s *channelStream) readLoop() {
	var in readBuffer
	for {
		buf := in.next()
		n, err := s.ssh.Read(buf)
		if err != nil {
			err = s.readError(err)
		}
		select {
		case s.filled <- piece{buf[:n], err}:
		case <-s.closed:
			return
		case <-s.conn.unread:
			close(s.filled)
			return
		}
		if err != nil {
			return
		}
		select {
		case <-s.spent:
		case <-s.closed:
			return
		case <-s.conn.unread:
			close(s.filled)
			return
		}
		in.used(n)
	}
}

// Write implements [channel.Transport]. It returns when the SSH library has taken all of p, which waits for the window
// that the other end grants.
func (s *channelStream) Write(p []byte, stop <-chan struct{}) (int, error) {
	total := 0
	for len(p) > 0 {
		buf := sends.Get().(*[sendSize]byte)
		n := copy(buf[:], p)
		taken, err := s.send(stop, func() error {
			defer sends.Put(buf)
			_, err := s.ssh.Write(buf[:n])
			return err
		})
		if taken {
			total += n
		}
		if err != nil {
			return total, s.sendError("write", err)
		}
		p = p[n:]
	}
	return total, nil
}

// CloseWrite implements [channel.Transport].
func (s *channelStream) CloseWrite(stop <-chan struct{}) error {
	if _, err := s.send(stop, s.ssh.CloseWrite); err != nil {
		return s.sendError("close write", err)
	}
	return nil
}

// send calls transmit in a goroutine, once the one before has ended, and waits for its result. taken reports whether
// transmit is called, which may be true even if stop ended the wait.
func (s *channelStream) send(stop <-chan struct{}, transmit func() error) (taken bool, err error) {
	if s.owed {
		if err := s.awaitSent(stop); err != nil {
			return false, err
		}
	}
	if s.owed = s.conn.spawn(func() { s.sent <- transmit() }); !s.owed {
		return false, io.EOF
	}
	err = s.awaitSent(stop)
	return err == nil || s.owed, err
}

// awaitSent waits for the sending goroutine and returns its error.
func (s *channelStream) awaitSent(stop <-chan struct{}) error {
	select {
	case err := <-s.sent:
		s.owed = false
		return err
	case <-stop:
		return channel.ErrStopped
	}
}
