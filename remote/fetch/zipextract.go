package fetch

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

// extractZip writes what the archive a holds.
func extractZip(ctx context.Context, a saved, w *treeWriter) error {
	z, err := zip.OpenReader(a.path)
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) { // of which the writer tells which
		return fmt.Errorf("it is no zip archive: %w", err)
	}
	defer func() { _ = z.Close() }()
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

var errSpecial = errors.New("it is a device, a pipe, a socket or a hard link; only files, directories and symbolic links can be in a step")
