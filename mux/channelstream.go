package mux

import (
	"io"
	"sync"
	"time"

	"github.com/stepmux/stepmux/mux/channel"
)

const (
	// chunkSize is how much a stream hands to the SSH library at once: the largest packet it and OpenSSH exchange.
	// Larger pieces would be passed between goroutines less often; measurements showed no difference.
	chunkSize = 32 << 10
	// writeLinger is how long, at least, the goroutine that writes waits for more.
	writeLinger = 20 * time.Millisecond
	// idleChunk is the size of the buffer that waits for the peer's first byte. It is small because many streams are
	// idle.
	idleChunk = 512
	// bulkChunk is how much is read at once while more than a packet comes.
	bulkChunk = 256 << 10
)

// chunks and bulks hold buffers of chunkSize and of bulkChunk.
var (
	chunks = sync.Pool{New: func() any { return new([chunkSize]byte) }}
	bulks  = sync.Pool{New: func() any { return new([bulkChunk]byte) }}
)

// readBuffer is the buffer of a channel's reader: small while little comes, large while much comes.
type readBuffer struct {
	small [idleChunk]byte
	large *[chunkSize]byte // nil while little comes, or very much
	bulk  *[bulkChunk]byte // nil but while very much comes
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

// used says that n bytes of the buffer were filled, and that they have been read.
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

// free gives the larger buffers back. Idempotent.
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
// The SSH library's own Read and Write can only be woken by the peer, so each direction has a goroutine, started by its
// first use. Close does not wait for them, and the Conn's Close does. The goroutine that writes ends once nothing was
// written for a while.
type channelStream struct {
	*sshChannel

	readOnce sync.Once
	filled   chan piece    // from the reader goroutine
	spent    chan struct{} // to the reader goroutine: the piece is used up
	current  piece         // owned by Read

	out     chan outPiece // to the writer goroutine
	written chan error    // from the writer goroutine, one for each outPiece
	owed    bool          // an answer that Write did not wait for; owned by Write

	writeMu sync.Mutex // guards the following
	writing bool       // there is a writer goroutine
	sending int        // callers of send
}

// piece is the result of one read of the channel.
type piece struct {
	data []byte
	err  error
}

// outPiece tells the writer goroutine to send n bytes of buf, which it gives back, or, without a buf, the end of the
// stream. One goroutine does both because the library allows no other.
type outPiece struct {
	buf *[chunkSize]byte
	n   int
}

func newChannelStream(ch *sshChannel) *channelStream {
	return &channelStream{
		sshChannel: ch,
		filled:     make(chan piece),
		spent:      make(chan struct{}, 1),
		out:        make(chan outPiece),
		written:    make(chan error, 1),
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

// readLoop reads the channel ahead by one piece, in small pieces while little comes. It gives a larger buffer back only
// once that is spent: Read may still copy from it when Close has woken readLoop, and the next stream to get it may
// belong to another build.
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
		}
		if err != nil {
			return
		}
		select {
		case <-s.spent:
		case <-s.closed:
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
		piece := outPiece{buf: chunks.Get().(*[chunkSize]byte)}
		piece.n = copy(piece.buf[:], p)
		taken, err := s.send(piece, stop)
		if taken {
			total += piece.n
		}
		if err != nil {
			return total, s.sendError("write", err)
		}
		p = p[piece.n:]
	}
	return total, nil
}

// CloseWrite implements [channel.Transport].
func (s *channelStream) CloseWrite(stop <-chan struct{}) error {
	if _, err := s.send(outPiece{}, stop); err != nil {
		return s.sendError("close write", err)
	}
	return nil
}

// send passes a piece to the writer goroutine and waits for its answer. taken says whether the piece is on its way: the
// writer has the buffer then, also if stop has ended the wait.
func (s *channelStream) send(piece outPiece, stop <-chan struct{}) (taken bool, err error) {
	if s.owed {
		if err := s.answer(stop); err != nil {
			return false, s.unsent(piece, err)
		}
	}
	s.wantWriter()
	defer s.doneSending()
	select {
	case s.out <- piece:
	case <-stop:
		return false, s.unsent(piece, channel.ErrStopped)
	case <-s.gone:
		return false, s.unsent(piece, io.EOF)
	case <-s.conn.done:
		return false, s.unsent(piece, io.EOF)
	}
	s.owed = true
	err = s.answer(stop)
	return err == nil || s.owed, err
}

// answer waits for the writer goroutine's answer to a piece.
func (s *channelStream) answer(stop <-chan struct{}) error {
	select {
	case err := <-s.written:
		s.owed = false
		return err
	case <-stop:
		return channel.ErrStopped
	}
}

// unsent gives back the buffer of a piece that was not sent because of err.
func (s *channelStream) unsent(piece outPiece, err error) error {
	if piece.buf != nil {
		chunks.Put(piece.buf)
	}
	return err
}

// wantWriter sees to it that there is a writer goroutine, until doneSending.
func (s *channelStream) wantWriter() {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	s.sending++
	if !s.writing {
		s.writing = s.conn.spawn(s.writeLoop) // if not spawned, the connection has ended
	}
}

func (s *channelStream) doneSending() {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	s.sending--
}

// retire reports whether the writer goroutine may end: no caller has a piece for it.
func (s *channelStream) retire() bool {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	s.writing = s.sending > 0
	return !s.writing
}

// writeLoop passes pieces to the SSH library until the stream is closed, or no piece came for a while.
func (s *channelStream) writeLoop() {
	ticker := time.NewTicker(writeLinger)
	defer ticker.Stop()
	idle := false
	for {
		select {
		case piece := <-s.out:
			idle = false
			s.written <- s.transmit(piece) // has room: one piece is on its way at a time
		case <-ticker.C:
			if idle && s.retire() {
				return
			}
			idle = true
		case <-s.closed:
			return
		case <-s.gone:
			return
		}
	}
}

func (s *channelStream) transmit(piece outPiece) error {
	if piece.buf == nil {
		return s.ssh.CloseWrite()
	}
	_, err := s.ssh.Write(piece.buf[:piece.n])
	chunks.Put(piece.buf)
	return err
}
