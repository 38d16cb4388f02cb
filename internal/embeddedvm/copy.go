package embeddedvm

import (
	"io"
	"sync"
)

// buffers are those of copyBytes: each build copies in both directions for a moment.
var buffers = sync.Pool{New: func() any { return new([32 << 10]byte) }} // a packet of SSH

// copyBytes copies src to dst until src ends. It is io.Copy without ReadFrom and WriteTo: those
// splice between sockets and pipes, which spins while the receiver is not reading.
func copyBytes(dst io.Writer, src io.Reader) error {
	buffer := buffers.Get().(*[32 << 10]byte)
	defer buffers.Put(buffer)
	_, err := io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, buffer[:])
	return err
}
