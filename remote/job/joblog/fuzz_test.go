package joblog

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzReadsAtOffsetsConcatenateToTheWrittenBytes takes data as a program of writes and reads. In any order and of any
// size, a read returns the bytes that were written at its offset.
func FuzzReadsAtOffsetsConcatenateToTheWrittenBytes(f *testing.F) {
	f.Add([]byte{4, 1, 9, 0, 20, 5}, uint16(0), uint16(0))
	f.Add([]byte{200, 200, 200, 3, 3}, uint16(300), uint16(150))
	f.Add([]byte{255, 254, 253}, uint16(1), uint16(700))
	f.Fuzz(func(t *testing.T, program []byte, limit, start uint16) {
		if len(program) > 200 {
			return
		}
		l := create(t, int64(limit))
		var written, read []byte
		off := int64(start)
		take := func(size int) {
			buf := make([]byte, size)
			n, err := l.ReadAt(t.Context(), buf, off)
			require.NoError(t, err)
			require.Positive(t, n)
			read = append(read, buf[:n]...)
			off += int64(n)
		}
		for i, b := range program {
			if b%2 == 0 {
				part := bytes.Repeat([]byte{byte(i)}, int(b))
				n, err := l.Write(part)
				require.NoError(t, err)
				require.Equal(t, len(part), n)
				written = append(written, part...)
			} else if off < l.Len() {
				take(int(b))
			}
		}
		require.NoError(t, l.Close())

		want := bytes.Clone(written[:int64(len(written))-l.Dropped()])
		unread := len(want)
		if start == 0 {
			unread -= int(off)
		}
		if limit > 0 {
			require.Equal(t, l.Dropped() > 0, l.full)
			require.LessOrEqual(t, unread, int(limit))
			require.LessOrEqual(t, l.Size(), int64(int(limit)+len(l.marker())))
		}
		if l.full {
			want = append(want, l.marker()...)
		}
		require.Equal(t, int64(len(want)), l.Len())
		if off > int64(len(want)) {
			_, err := l.ReadAt(t.Context(), make([]byte, 1), off)
			require.ErrorIs(t, err, ErrOffset)
			return
		}
		for off < int64(len(want)) {
			take(100)
		}
		_, err := l.ReadAt(t.Context(), make([]byte, 1), off)
		require.True(t, errors.Is(err, io.EOF))
		require.True(t, bytes.Equal(want[start:], read))
	})
}
