package streams

import (
	"bufio"
	"io"
)

// ReceiveLate gives the stream up, and then takes n bytes for it from in, as Run does if it found the stream just
// before.
func (st *Stream) ReceiveLate(in io.Reader, n uint32) error {
	st.giveUp()
	return st.receive(bufio.NewReaderSize(in, ReadAhead), n)
}
