package embeddedvm

import "io"

// chunk is the size of a copy: the largest packet of SSH channels.
const chunk = 32 << 10

// copyBytes copies src to dst until src ends. It is io.Copy without ReadFrom and WriteTo: those
// splice between sockets and pipes, which spins while the receiver is not reading.
func copyBytes(dst io.Writer, src io.Reader) error {
	buf := make([]byte, chunk)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				return err
			}
		}
		switch err {
		case nil:
		case io.EOF:
			return nil
		default:
			return err
		}
	}
}
