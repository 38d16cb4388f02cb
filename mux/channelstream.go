package mux

import (
	"io"
	"sync"
	"time"
)

const (
	// chunkSize is how much a stream hands to the SSH library at once: the largest packet it and OpenSSH exchange.
	// Larger pieces, which go from goroutine to goroutine less often, were measured to make no difference.
	chunkSize = 32 << 10
	// writeLinger is how long, at least, the goroutine that writes waits for more.
	writeLinger = 20 * time.Millisecond
	// idleChunk is the size of the buffer that waits for the peer's first byte, small because idle
	// streams are many.
	idleChunk = 512
	// bulkChunk is how much is read at once while more comes than a packet.
	bulkChunk = 256 << 10
)

// chunks and bulks hold buffers of chunkSize and of bulkChunk.
var (
	chunks = sync.Pool{New: func() any { return new([chunkSize]byte) }}
	bulks  = sync.Pool{New: func() any { return new([bulkChunk]byte) }}
)

// readBuffer is what a channel is read into: small while little comes, large while much does.
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

// used notes that n bytes of the buffer were filled, and that nobody needs them any more.
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

const (
	// rushRate is from how many bytes a second on, and rushReads after how many reads in a row at such a rate, a
	// stream counts as a rush.
	rushRate, rushReads = 128 << 20, 8
	// rushPause is how long the reader of a rush lets more come before it reads on.
	rushPause = 60 * time.Microsecond
)

// rush counts reads of a stream that come at a high rate, one after the other. For each of them the SSH library may open
// the window, by a packet and a system call: few large ones cost a tenth less of the processors' time than many small
// ones, at both ends.
type rush int

// pause waits for more if a read of n bytes, which took so long, is one of a rush.
func (r *rush) pause(n int, took time.Duration) {
	switch {
	case n < chunkSize || took > time.Duration(n)*time.Second/rushRate:
		*r = 0
	case *r < rushReads:
		*r++
	default:
		time.Sleep(rushPause) //nolint:forbidigo // no event is waited for
	}
}

// channelStream is a Stream over an SSH channel.
//
// The SSH library's own Read and Write can only be woken by the peer, so each direction has a
// goroutine, started by its first use, that Close need not wait for and the Conn's Close does. The one that
// writes ends when nothing was written for a while.
type channelStream struct {
	*channel

	readOnce sync.Once
	filled   chan piece    // from the reader goroutine
	spent    chan struct{} // to it: the piece is used up
	current  piece         // owned by Read

	out     chan outPiece // to the writer goroutine
	written chan error    // from it, one for each outPiece

	writeMu sync.Mutex // guards the following
	writing bool       // there is a writer goroutine
	sending int        // how many have a piece for it

	closeWrite sync.Once
}

// piece is what one read of the channel gave.
type piece struct {
	data []byte
	err  error
}

// outPiece is what the writer goroutine shall send: n bytes of buf, which it gives back, or, without a
// buf, the end of the stream. One goroutine does both because the library allows no other.
type outPiece struct {
	buf *[chunkSize]byte
	n   int
}

func newChannelStream(ch *channel) *channelStream {
	return &channelStream{
		channel: ch,
		filled:  make(chan piece),
		spent:   make(chan struct{}, 1),
		out:     make(chan outPiece),
		written: make(chan error),
	}
}

// Read reads what the other end sent. See [Stream] for its errors.
func (s *channelStream) Read(p []byte) (int, error) {
	if s.isClosed() {
		return 0, s.readError(io.EOF)
	}
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
		case <-s.closed:
			return 0, s.readError(io.EOF)
		}
	}
	n := copy(p, s.current.data)
	s.current.data = s.current.data[n:]
	if len(s.current.data) == 0 && s.current.err == nil {
		s.spent <- struct{}{}
	}
	return n, nil
}

// readLoop reads the channel ahead by one piece, in small pieces while little comes. A larger buffer is given back only
// when it is spent: Read may still copy from it when Close has woken the readLoop, and the next to have it is another
// build's stream.
func (s *channelStream) readLoop() {
	var in readBuffer
	var fast rush
	for {
		begin := time.Now()
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
		fast.pause(n, time.Since(begin))
	}
}

// Write sends p. It returns when the SSH library has taken all of it, which waits for the window the
// other end grants.
func (s *channelStream) Write(p []byte) (int, error) {
	total := 0
	for len(p) > 0 {
		piece := outPiece{buf: chunks.Get().(*[chunkSize]byte)}
		piece.n = copy(piece.buf[:], p)
		if err := s.send(piece); err != nil {
			return total, s.sendError("write", err)
		}
		total += piece.n
		p = p[piece.n:]
	}
	return total, nil
}

// CloseWrite tells the other end that no more comes, after what Write has sent; reading goes on.
// Idempotent.
func (s *channelStream) CloseWrite() error {
	var err error
	s.closeWrite.Do(func() {
		if err = s.send(outPiece{}); err != nil {
			err = s.sendError("close write", err)
		}
	})
	return err
}

// send passes a piece to the writer goroutine and waits for its word.
func (s *channelStream) send(piece outPiece) error {
	s.wantWriter()
	defer s.doneSending()
	select {
	case s.out <- piece:
	case <-s.closed:
		return s.unsent(piece)
	case <-s.gone:
		return s.unsent(piece)
	case <-s.conn.done:
		return s.unsent(piece)
	}
	// From here the buffer is the writer's: it may still read it when Close has woken us.
	select {
	case err := <-s.written:
		return err
	case <-s.closed:
		return io.EOF
	}
}

// wantWriter sees to it that there is a writer goroutine, until doneSending.
func (s *channelStream) wantWriter() {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	s.sending++
	if !s.writing {
		s.writing = s.conn.spawn(s.writeLoop) // if not spawned, the connection is done
	}
}

func (s *channelStream) doneSending() {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	s.sending--
}

// retire reports whether the writer goroutine may end: nobody has a piece for it.
func (s *channelStream) retire() bool {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	s.writing = s.sending > 0
	return !s.writing
}

func (s *channelStream) unsent(piece outPiece) error {
	if piece.buf != nil {
		chunks.Put(piece.buf)
	}
	return io.EOF
}

// writeLoop hands pieces to the SSH library until the stream is closed, or none came for a while.
func (s *channelStream) writeLoop() {
	ticker := time.NewTicker(writeLinger)
	defer ticker.Stop()
	idle := false
	for {
		select {
		case piece := <-s.out:
			idle = false
			select {
			case s.written <- s.transmit(piece):
			case <-s.closed:
				return
			}
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
