// Package boundedzip opens zip archives that may be hostile. archive/zip reads the whole directory of an archive into
// memory, and goes on as long as there are entries, even if the archive declares fewer of them and a smaller size.
// [NewReader] bounds both.
package boundedzip

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The bytes in an archive's directory for each entry, on average, beyond nameFloor.
const (
	nameSize  = 256
	nameFloor = 1 << 20
)

// The first bytes of an entry of an archive's directory, and of the record that ends the directory of a large archive
// (ZIP specification, 4.3.12 and 4.3.14).
const (
	entryMark   = "PK\x01\x02"
	endMark     = "PK\x06\x06"
	endCount    = 32      // offset of the number of entries
	endOverlaps = 2 << 10 // entries that may be counted twice, because the end of the archive is read first
)

// NewReader reads the directory of the archive of size bytes, which may have at most entries entries. It accepts names
// that lead outside: the caller checks them.
func NewReader(r io.ReaderAt, size int64, entries int) (*zip.Reader, error) {
	d := &directoryReader{r: r, size: size, limit: entries}
	z, err := zip.NewReader(d, size)
	d.read = true
	switch {
	case d.err != nil:
		return nil, d.err
	case err != nil && !errors.Is(err, zip.ErrInsecurePath):
		return nil, fmt.Errorf("the file is not a zip archive: %w", err)
	case len(z.File) > entries:
		return nil, fmt.Errorf("the archive has %d entries, the limit is %d", len(z.File), entries)
	}
	return z, nil
}

// directoryReader reads an archive and bounds its directory.
type directoryReader struct {
	r       io.ReaderAt
	size    int64 // of the archive
	limit   int   // of entries
	read    bool  // the directory was read: the bound does not apply any more
	bytes   int
	entries int
	last    []byte // the last bytes read, in which an entry may have begun
	err     error
}

// errOutside is the error for the offsets of a hostile archive. That of a file would be "negative offset" or "EOF".
var errOutside = errors.New("the archive is damaged: its directory points outside the archive")

// ReadAt implements [io.ReaderAt].
func (d *directoryReader) ReadAt(p []byte, at int64) (int, error) {
	if at < 0 || at >= d.size {
		if !d.read {
			d.err = errOutside
		}
		return 0, errOutside
	}
	n, err := d.r.ReadAt(p, at)
	if d.read {
		return n, err
	}
	d.bytes += n
	d.last = append(d.last, p[:n]...)
	d.entries += bytes.Count(d.last, []byte(entryMark))
	d.last = append(d.last[:0], d.last[max(0, len(d.last)-len(entryMark)+1):]...)
	declared := uint64(0)
	if n >= endCount+8 && string(p[:len(endMark)]) == endMark {
		declared = binary.LittleEndian.Uint64(p[endCount:])
	}
	switch {
	case declared > uint64(d.limit):
		d.err = fmt.Errorf("the archive has %d entries, the limit is %d", declared, d.limit)
	case d.entries > d.limit+endOverlaps:
		d.err = fmt.Errorf("the archive has more than %d entries", d.limit)
	case d.bytes > d.limit*nameSize+nameFloor:
		d.err = fmt.Errorf("the directory of the archive has more than %d bytes", d.limit*nameSize+nameFloor)
	}
	if d.err != nil {
		return 0, d.err
	}
	return n, err
}
