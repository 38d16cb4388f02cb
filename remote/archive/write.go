package archive

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"cmp"
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

// Write writes an archive of the files to w. Its memory is bounded, even for large files. It ends with ctx. A file that
// cannot be read is left out, and one that can be read in part is not complete in the archive: Warn names them.
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

// item is a file, a directory or a link to pack.
type item struct {
	name   string
	info   fs.FileInfo
	file   *content // nil for a directory and a link
	target string   // of a link
}

// each calls pack for each file that still exists and can be opened.
func (p *packer) each(pack func(item) error) error {
	for ; p.files != nil; p.files = p.files.beside {
		for _, name := range p.files.names {
			if p.ctx.Err() != nil {
				return context.Cause(p.ctx)
			}
			if err := p.one(name, pack); err != nil {
				return fmt.Errorf("archive %s: %w", name, oserr.Bare(err))
			}
		}
		p.files.leave.end()
	}
	return nil
}

func (p *packer) one(name string, pack func(item) error) error {
	if p.files.leave.has(name) {
		return nil
	}
	i := item{name: name}
	var err error
	if i.info, err = p.files.root.Lstat(name); err == nil {
		switch i.info.Mode().Type() {
		case fs.ModeDir:
		case fs.ModeSymlink:
			i.target, err = p.files.root.Readlink(name)
		default:
			var file *os.File
			if file, err = boundedfile.Open(p.files.root.OpenFile, name); err == nil {
				defer file.Close()
				i.info, err = file.Stat()
				i.file = &content{ctx: p.ctx, r: file}
			}
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist): // deleted in the meantime
		return nil
	case err != nil:
		p.files.Leave(name, err)
		return nil
	}
	if err = pack(i); err == nil && i.file != nil && i.file.err != nil {
		p.files.leave.say(name, fmt.Sprintf("%s: only a part of it is archived: %v", name, oserr.Bare(i.file.err)))
	}
	return err
}

// content is the content of a file. It ends where the file cannot be read any more; err is the reason.
type content struct {
	ctx context.Context // its end is an error of Read
	r   io.Reader
	err error
}

func (c *content) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	n, err := c.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err, err = err, io.EOF
	}
	return n, err
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
	err = p.each(func(i item) error {
		h := &zip.FileHeader{Name: i.name, Modified: i.info.ModTime()}
		h.SetMode(i.info.Mode())
		switch {
		case i.info.IsDir():
			h.Name += "/"
		case i.file != nil && i.info.Size() > 0:
			h.Method = method
		}
		entry, err := z.CreateHeader(h)
		if err != nil || i.info.IsDir() {
			return err
		}
		if i.file == nil {
			_, err = io.WriteString(entry, i.target)
			return err
		}
		return p.copy(entry, i.file)
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
	err = p.each(func(i item) error {
		h := &tar.Header{
			Name: i.name, Mode: int64(i.info.Mode().Perm()), ModTime: i.info.ModTime(), Format: tar.FormatPAX,
		}
		switch {
		case i.info.IsDir():
			h.Typeflag, h.Name = tar.TypeDir, i.name+"/"
		case i.file == nil:
			h.Typeflag, h.Linkname, h.ModTime = tar.TypeSymlink, i.target, time.Unix(0, 0) // as Extract does not set it
		default:
			h.Typeflag, h.Size = tar.TypeReg, i.info.Size()
		}
		if err := t.WriteHeader(h); err != nil || i.file == nil {
			return err
		}
		return p.copyExactly(t, i.file, h.Size)
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

// copyExactly copies size bytes, because the header has announced this size. It fills up a file that ends earlier.
func (p *packer) copyExactly(w io.Writer, file *content, size int64) error {
	counted := &io.LimitedReader{R: file, N: size}
	if err := p.copy(w, counted); err != nil || counted.N == 0 {
		return err
	}
	why := cmp.Or(file.err, errors.New("the file became shorter while it was read"))
	file.err = fmt.Errorf("%w; zeros stand for its last %s", oserr.Bare(why),
		plural.Count(counted.N, "byte"))
	return p.copy(w, io.LimitReader(zeros{}, counted.N))
}

// zeros is an endless reader of zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// gzip writes a gzip member with the name of the file for each file.
func (p *packer) gzip(w io.Writer) error {
	c, err := gzip.NewWriterLevel(w, levels[p.level].deflate)
	if err != nil {
		return err
	}
	return p.each(func(i item) error {
		if i.file == nil {
			return nil
		}
		c.Reset(w)
		c.ModTime = i.info.ModTime()
		if isLatin1(i.name) { // a gzip header accepts only such names
			c.Name = i.name
		}
		if err := p.copy(c, i.file); err != nil {
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
	return p.each(func(i item) error {
		switch {
		case i.file == nil:
			return nil
		case one != "":
			return fmt.Errorf("the format raw is for one file, and there is also %s: use zip or gzip", one)
		}
		one = i.name
		return p.copy(w, i.file)
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
