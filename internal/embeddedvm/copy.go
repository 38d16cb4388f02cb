package embeddedvm

import "io"

// copyBytes copies src to dst until src ends. It is io.Copy without ReadFrom and WriteTo: those
// splice between sockets and pipes, which spins while the receiver is not reading.
func copyBytes(dst io.Writer, src io.Reader) error {
	_, err := io.Copy(struct{ io.Writer }{dst}, struct{ io.Reader }{src})
	return err
}
