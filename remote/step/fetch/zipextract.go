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

// extractZip writes the entries of the archive a.
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
		return fmt.Errorf("it is not a zip archive: %w", err)
	}
	if err := checkZip(z.File, a.size, w.limits); err != nil {
		return err
	}
	for _, entry := range z.File {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := writeEntry(ctx, entry, w); err != nil {
			return err
		}
	}
	return nil
}

// The first bytes of an entry of an archive's directory, and of the record that ends the directory of a large archive
// (ZIP specification, 4.3.12 and 4.3.14).
const (
	entryMark   = "PK\x01\x02"
	endMark     = "PK\x06\x06"
	endCount    = 32      // offset of the number of entries
	endOverlaps = 2 << 10 // entries that may be counted twice, as the end of the archive is read first
)

// directoryReader reads an archive and bounds its directory. archive/zip reads the whole directory into memory, and
// goes on as long as there are entries, whatever number and size the archive declares.
type directoryReader struct {
	r       io.ReaderAt
	limit   int  // of entries
	read    bool // the directory was read: from then on there is no bound
	bytes   int
	entries int
	last    []byte // the last bytes read, in which an entry may have begun
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

// checkZip refuses an archive whose directory declares more than the limits allow.
func checkZip(entries []*zip.File, size int64, l limits) error {
	if len(entries) > l.entries {
		return fmt.Errorf("the archive has %d entries, the limit is %d", len(entries), l.entries)
	}
	var total uint64
	for _, e := range entries {
		if e.UncompressedSize64 > uint64(l.file) {
			return entryError(e.Name, tooLarge(l.file))
		}
		total += e.UncompressedSize64
	}
	switch {
	case total > uint64(l.total):
		return fmt.Errorf("the files of the archive have a size of %d bytes, the limit is %d", total, l.total)
	case total > ratioFloor && total > uint64(size)*uint64(l.ratio):
		return fmt.Errorf("the files of the archive have a size of %d bytes, more than %d times that of the archive", total,
			l.ratio)
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
		return entryError(name, errSpecial)
	}
	r, err := e.Open()
	if err != nil {
		return entryError(name, err)
	}
	defer r.Close()
	if mode.Type() == fs.ModeSymlink {
		return w.symlink(name, r)
	}
	return w.file(name, mode.Perm()&0o111 != 0, contextReader{ctx, r})
}

var errSpecial = errors.New("it is a device, a pipe, a socket or a hard link; only files, directories and symbolic " +
	"links can be in a step")
