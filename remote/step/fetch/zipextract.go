package fetch

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/stepmux/stepmux/internal/boundedzip"
)

// extractZip writes the entries of the archive a.
func extractZip(ctx context.Context, a saved, w *treeWriter) error {
	file, err := os.Open(a.path)
	if err != nil {
		return err
	}
	defer file.Close()
	z, err := boundedzip.NewReader(file, a.size, w.limits.entries) // the writer refuses names that lead outside
	if err != nil {
		return err
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

// checkZip refuses an archive whose directory declares more than the limits allow.
func checkZip(entries []*zip.File, size int64, l limits) error {
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

var errSpecial = errors.New("the entry is a device, a pipe, a socket or a hard link; only files, directories and " +
	"symbolic links can be in a step")
