package pipe

import (
	"errors"
	"fmt"
	"io"
	"sync"
)

// copyBuffers holds the buffers of copies, *[64 << 10]byte.
var copyBuffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// ErrRead is wrapped by the error of a [Copy] whose source failed.
var ErrRead = errors.New("read")

// Copy copies src to dst until src ends, then returns nil. It uses plain reads and writes: io.Copy would find ReadFrom
// and use splice(2). A splice into a pipe in blocking mode spins on a whole core for as long as the pipe's reader
// stalls.
func Copy(dst io.Writer, src io.Reader) error {
	buf, _ := copyBuffers.Get().(*[64 << 10]byte)
	defer copyBuffers.Put(buf)
	for {
		n, err := src.Read(buf[:])
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%w: %w", ErrRead, err)
		}
	}
}
