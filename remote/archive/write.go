package archive

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/plural"
)

const (
	bufferSize = 64 << 10
	// window is the distance over which zstd looks for repetitions, in bytes. Both ends need a few times as much
	// memory.
	window = 8 << 20
)

// Write writes an archive of the files to w. Its memory is bounded, even for large files. It ends with ctx.
func (f *Files) Write(ctx context.Context, w io.Writer, format Format, level Level) error {
	p := &packer{files: f, ctx: ctx, level: level, buffer: make([]byte, bufferSize)}
	buffered := bufio.NewWriterSize(w, bufferSize)
	var err error
	switch format {
	case Zip, ZipZstd:
		err = p.zip(buffered, format)
	case TarZstd:
		err = p.tar(buffered)
	case Gzip:
		err = p.gzip(buffered)
	case Raw:
		err = p.raw(buffered)
	default:
		return fmt.Errorf("the archive format %q is not one of zip, gzip, raw, tarzstd and zipzstd", format)
	}
	if err != nil {
		return err
	}
	return buffered.Flush()
}

// packer packs files.
type packer struct {
	files  *Files
	ctx    context.Context // of the single call of Write
	level  Level
	buffer []byte
}

// each calls pack for each file that still exists. file is nil for a directory and a link.
func (p *packer) each(pack func(name string, info fs.FileInfo, file io.Reader) error) error {
	for _, name := range p.files.names {
		if p.ctx.Err() != nil {
			return context.Cause(p.ctx)
		}
		if err := p.one(name, pack); err != nil {
			return fmt.Errorf("archive %s: %w", name, oserr.Bare(err))
		}
	}
	return nil
}

func (p *packer) one(name string, pack func(name string, info fs.FileInfo, file io.Reader) error) error {
	info, err := p.files.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) { // deleted in the meantime
		return nil
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return pack(name, info, nil)
	}
	file, err := boundedfile.Open(p.files.root.OpenFile, name)
	if err != nil {
		return err
	}
	defer file.Close()
	if info, err = file.Stat(); err != nil {
		return err
	}
	return pack(name, info, untilEnd{p.ctx, file})
}

// untilEnd is a reader that fails when ctx has ended. It hides the file's other methods, because they do not look at
// ctx.
type untilEnd struct {
	ctx context.Context
	r   io.Reader
}

func (r untilEnd) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}

func (p *packer) copy(w io.Writer, r io.Reader) error {
	_, err := io.CopyBuffer(onlyWriter{w}, r, p.buffer)
	return err
}

// onlyWriter hides ReadFrom, so that copies use the one buffer.
type onlyWriter struct{ io.Writer }

func (p *packer) encoder() (*zstd.Encoder, error) {
	return zstd.NewWriter(nil, zstd.WithEncoderLevel(levels[p.level].zstd), zstd.WithWindowSize(window),
		zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true))
}

// compressor can be reused for the next file.
type compressor interface {
	io.WriteCloser
	Reset(w io.Writer)
}

// zip writes a zip archive. Times are in seconds, and links have their target as content.
func (p *packer) zip(w io.Writer, format Format) error {
	z := zip.NewWriter(w)
	var method uint16
	var c compressor
	var err error
	if format == ZipZstd {
		method = zstd.ZipMethodWinZip
		c, err = p.encoder()
	} else {
		method = zip.Deflate
		c, err = flate.NewWriter(nil, levels[p.level].deflate)
	}
	if err != nil {
		return err
	}
	z.RegisterCompressor(method, func(out io.Writer) (io.WriteCloser, error) {
		c.Reset(out)
		return c, nil
	})
	err = p.each(func(name string, info fs.FileInfo, file io.Reader) error {
		h := &zip.FileHeader{Name: name, Modified: info.ModTime()}
		h.SetMode(info.Mode())
		switch {
		case info.IsDir():
			h.Name += "/"
		case file == nil:
			target, err := p.files.root.Readlink(name)
			if err != nil {
				return err
			}
			file = strings.NewReader(target)
		case info.Size() > 0:
			h.Method = method
		}
		entry, err := z.CreateHeader(h)
		if err != nil || file == nil {
			return err
		}
		return p.copy(entry, file)
	})
	if err != nil {
		return err
	}
	return z.Close()
}

// tar writes a tar archive in zstd.
func (p *packer) tar(w io.Writer) error {
	c, err := p.encoder()
	if err != nil {
		return err
	}
	c.Reset(w)
	t := tar.NewWriter(c)
	err = p.each(func(name string, info fs.FileInfo, file io.Reader) error {
		h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX}
		switch {
		case info.IsDir():
			h.Typeflag, h.Name = tar.TypeDir, name+"/"
		case file == nil:
			h.Typeflag = tar.TypeSymlink
			var err error
			if h.Linkname, err = p.files.root.Readlink(name); err != nil {
				return err
			}
		default:
			h.Typeflag, h.Size = tar.TypeReg, info.Size()
		}
		if err := t.WriteHeader(h); err != nil || file == nil {
			return err
		}
		return p.copyExactly(t, file, h.Size)
	})
	if err != nil {
		_ = c.Close() // so that it leaves no goroutine
		return err
	}
	if err := t.Close(); err != nil {
		return err
	}
	return c.Close()
}

// copyExactly copies size bytes, because the header has announced this size.
func (p *packer) copyExactly(w io.Writer, file io.Reader, size int64) error {
	counted := &io.LimitedReader{R: file, N: size}
	if err := p.copy(w, counted); err != nil {
		return err
	}
	if counted.N > 0 {
		return fmt.Errorf("it became %s shorter while it was read", plural.Count(counted.N, "byte"))
	}
	return nil
}

// gzip writes a gzip member with the name of the file for each file.
func (p *packer) gzip(w io.Writer) error {
	c, err := gzip.NewWriterLevel(w, levels[p.level].deflate)
	if err != nil {
		return err
	}
	return p.each(func(name string, info fs.FileInfo, file io.Reader) error {
		if file == nil {
			return nil
		}
		c.Reset(w)
		c.ModTime = info.ModTime()
		if isLatin1(name) { // a gzip header accepts only such names
			c.Name = name
		}
		if err := p.copy(c, file); err != nil {
			return err
		}
		return c.Close()
	})
}

func isLatin1(s string) bool {
	for _, r := range s {
		if r == 0 || r > 0xff {
			return false
		}
	}
	return true
}

// raw writes the content of the one file.
func (p *packer) raw(w io.Writer) error {
	one := ""
	return p.each(func(name string, _ fs.FileInfo, file io.Reader) error {
		switch {
		case file == nil:
			return nil
		case one != "":
			return fmt.Errorf("the format raw is for one file, and there is also %s: use zip or gzip", one)
		}
		one = name
		return p.copy(w, file)
	})
}

// keepPart is how long a part of a killed process is kept without a change. It is shorter in tests.
var keepPart = 24 * time.Hour

// Replace makes or replaces the file name, with mode 0600. The file appears only when write has written all of it;
// until then it is a part, with a hidden name. Replace removes old parts of the same file, which killed processes have
// left. Missing directories are made with mode 0700.
func Replace(name string, write func(*os.File) error) (err error) {
	dir := filepath.Dir(name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	base := filepath.Base(name)
	prefix := "." + base[:min(len(base), 200)] + ".part-"
	removeParts(dir, prefix)
	file, err := os.CreateTemp(dir, prefix)
	if err != nil {
		return oserr.Hint(err, dir)
	}
	defer func() {
		if err != nil {
			file.Close()
			_ = os.Remove(file.Name())
		}
	}()
	if err := write(file); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	return os.Rename(file.Name(), name)
}

// removeParts removes the old files whose names begin with prefix. It ignores errors: the files only take room.
func removeParts(dir, prefix string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		// Not the time of the last write: that of a download is the server's.
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && time.Since(time.Unix(stat.Ctim.Unix())) > keepPart {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}
