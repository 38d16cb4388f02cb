package fetch

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// extractZip writes what the archive a holds.
func extractZip(ctx context.Context, a saved, w *treeWriter) error {
	file, err := os.Open(a.path)
	if err != nil {
		return err
	}
	defer file.Close()
	d := &directoryReader{r: file, limit: w.limits.entries}
	z, err := zip.NewReader(d, a.size)
	d.read = true
	switch {
	case d.err != nil:
		return d.err
	case err != nil && !errors.Is(err, zip.ErrInsecurePath): // of which the writer tells which
		return fmt.Errorf("it is no zip archive: %w", err)
	}
	if err := checkZip(z.File, a.size, w.limits); err != nil {
		return err
	}
	for _, entry := range z.File {
		if err := writeEntry(ctx, entry, w); err != nil {
			return err
		}
	}
	return nil
}

// The first bytes of an entry of an archive's directory, and of what tells of the directory of a large archive (ZIP
// specification, 4.3.12 and 4.3.14).
const (
	entryMark   = "PK\x01\x02"
	endMark     = "PK\x06\x06"
	endCount    = 32      // where the number of entries is
	endOverlaps = 2 << 10 // entries that may be seen twice, as the end of the archive is read first
)

// directoryReader reads an archive, and bounds its directory until that is read: all of it comes into memory, and goes
// on for as long as there are entries, whatever the archive says of their number and its size.
type directoryReader struct {
	r       io.ReaderAt
	limit   int  // of entries
	read    bool // the directory is, from when on there is no bound
	bytes   int
	entries int
	last    []byte // bytes in which an entry may have begun
	err     error
}

// ReadAt implements [io.ReaderAt].
func (d *directoryReader) ReadAt(p []byte, at int64) (int, error) {
	n, err := d.r.ReadAt(p, at)
	if d.read {
		return n, err
	}
	d.bytes += n
	d.last = append(d.last, p[:n]...)
	d.entries += bytes.Count(d.last, []byte(entryMark))
	d.last = append(d.last[:0], d.last[max(0, len(d.last)-len(entryMark)+1):]...)
	told := uint64(0)
	if n >= endCount+8 && string(p[:len(endMark)]) == endMark {
		told = binary.LittleEndian.Uint64(p[endCount:])
	}
	switch {
	case told > uint64(d.limit):
		d.err = fmt.Errorf("the archive has %d entries, the limit is %d", told, d.limit)
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

// checkZip refuses an archive by what it says of itself.
func checkZip(entries []*zip.File, size int64, l limits) error {
	if len(entries) > l.entries {
		return fmt.Errorf("the archive has %d entries, the limit is %d", len(entries), l.entries)
	}
	var total uint64
	for _, e := range entries {
		if e.UncompressedSize64 > uint64(l.file) {
			return fmt.Errorf("write %q: %w", printable(e.Name, 200), tooLarge(l.file))
		}
		total += e.UncompressedSize64
	}
	switch {
	case total > uint64(l.total):
		return fmt.Errorf("the size of what the archive holds is %d bytes, the limit is %d", total, l.total)
	case total > ratioFloor && total > uint64(size)*uint64(l.ratio):
		return fmt.Errorf("the size of what the archive holds is %d bytes, more than %d times its own", total, l.ratio)
	}
	return nil
}

// writeEntry writes an entry of an archive.
func writeEntry(ctx context.Context, e *zip.File, w *treeWriter) error {
	mode := e.Mode()
	name, isDir := strings.CutSuffix(e.Name, "/")
	switch {
	case isDir || mode.IsDir():
		return w.dir(name)
	case !mode.IsRegular() && mode.Type() != fs.ModeSymlink:
		return w.wrong(name, errSpecial)
	}
	r, err := e.Open()
	if err != nil {
		return w.wrong(name, err)
	}
	defer r.Close()
	if mode.Type() == fs.ModeSymlink {
		target, err := io.ReadAll(io.LimitReader(r, maxTarget+1))
		if err != nil {
			return w.wrong(name, err)
		}
		return w.symlink(name, string(target))
	}
	return w.file(name, mode.Perm()&0o111 != 0, contextReader{ctx, r})
}

var errSpecial = errors.New("it is a device, a pipe, a socket or a hard link; only files, directories and symbolic " +
	"links can be in a step")
