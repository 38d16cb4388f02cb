package relay

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// A read that Close woke may be followed by another.
func TestLinkIsReadAgainAfterItsClose(t *testing.T) {
	l := &link{filled: make(chan piece, 1), empty: make(chan []byte, 2), closed: make(chan struct{})}
	l.filled <- piece{data: []byte("abc")}
	got := make([]byte, 3)
	_, err := io.ReadFull(l, got)
	require.NoError(t, err)
	require.Equal(t, "abc", string(got))
	close(l.closed)
	for range 2 {
		_, err = l.Read(got)
		require.ErrorIs(t, err, io.ErrClosedPipe)
	}
}
