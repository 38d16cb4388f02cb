package boundedzip

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func archive(t *testing.T, n int, comment string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for i := range n {
		_, err := z.CreateHeader(&zip.FileHeader{Name: strconv.Itoa(i), Comment: comment})
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	return b.Bytes()
}

func TestDirectoryOfAnArchiveIsBoundedBeforeItIsInMemory(t *testing.T) {
	const endSize = 22
	lies := archive(t, 5000, "") // about the number of entries
	binary.LittleEndian.PutUint16(lies[len(lies)-endSize+10:], 1)
	one := archive(t, 1, "")
	at := len(one) - endSize
	end := append([]byte(endMark), make([]byte, 52)...)
	binary.LittleEndian.PutUint64(end[endCount:], 1<<40)
	locator := append([]byte("PK\x06\x07\x00\x00\x00\x00"), make([]byte, 12)...)
	binary.LittleEndian.PutUint64(locator[8:], uint64(at))
	locator[16] = 1
	large := slices.Concat(one[:at], end, locator, one[at:])
	binary.LittleEndian.PutUint16(large[len(large)-endSize+10:], 0xffff)
	for want, data := range map[string][]byte{
		"the archive has more than 100 entries":                    lies,
		"the archive has 1099511627776 entries, the limit is 100":  large,
		"the directory of the archive has more than 1074176 bytes": archive(t, 30, strings.Repeat("x", 60_000)),
		"the archive has 101 entries, the limit is 100":            archive(t, 101, ""),
		"the file is not a zip archive":                            []byte("no"),
	} {
		_, err := NewReader(bytes.NewReader(data), int64(len(data)), 100)
		require.ErrorContains(t, err, want)
	}
	locator = slices.Clone(locator)
	binary.LittleEndian.PutUint64(locator[8:], 1<<40)
	large = slices.Concat(one[:at], end, locator, one[at:])
	binary.LittleEndian.PutUint16(large[len(large)-endSize+10:], 0xffff)
	_, err := NewReader(bytes.NewReader(large), int64(len(large)), 100)
	require.Equal(t, errOutside, err)
	data := archive(t, 3000, "")
	z, err := NewReader(bytes.NewReader(data), int64(len(data)), 3000)
	require.NoError(t, err)
	require.Len(t, z.File, 3000)
}

// The errors were "negative offset" and "EOF".
func TestEntryOutsideTheArchiveIsADamagedArchive(t *testing.T) {
	for _, offset := range []uint64{1 << 20, 1<<63 - 1, 1 << 63, 1<<64 - 1} {
		large := append([]byte{1, 0, 8, 0}, make([]byte, 8)...) // 4.5.3
		binary.LittleEndian.PutUint64(large[4:], offset)
		var b bytes.Buffer
		w := zip.NewWriter(&b)
		_, err := w.CreateHeader(&zip.FileHeader{Name: "a", Extra: large})
		require.NoError(t, err)
		require.NoError(t, w.Close())
		data := b.Bytes()
		copy(data[bytes.Index(data, []byte(entryMark))+42:], "\xff\xff\xff\xff")
		z, err := NewReader(bytes.NewReader(data), int64(len(data)), 1)
		require.NoError(t, err)
		_, err = z.File[0].Open()
		require.Equal(t, errOutside, err, offset)
	}
}
