package archive

import (
	"archive/tar"
	"archive/zip"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/boundedzip"
	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/termtext"
)

const (
	maxEntries = 500_000
	maxPath    = 4096 // bytes of a path in an archive, and of a link's target
	// nameSize and nameFloor bound the bytes of all names and targets: on average of an entry, and beyond that. They are
	// those of package boundedzip.
	nameSize, nameFloor = 256, 1 << 20
	// maxWindow bounds the memory that an archive can make zstd use for its window, in bytes.
	maxWindow = 64 << 20
	// DefaultBytes bounds all files of an archive together, in bytes, even if the file system has more room.
	DefaultBytes = 64 << 30
)

// Bounds are the bounds of an archive's content.
type Bounds struct {
	// Bytes bounds the sum of the sizes of all files. If zero, it is nine tenths of the free space of the file system,
	// and at most [DefaultBytes].
	Bytes int64
	// Entries bounds the number of files, links and directories. If zero, 500,000.
	Entries int
	// OutsideLinks allows symbolic links that lead out of the directory. Otherwise they are an error. In both cases
	// nothing is written through them.
	OutsideLinks bool
}

// Extract unpacks the archive in file below dir: zip, or tar in zstd. It replaces files, and keeps their modes and
// times, but no owner and no setuid bit.
//
// Some entries are an error: one outside of dir, a name that comes twice, a link that leads outside, a device, and more
// than the bounds allow. Extract looks for these before it writes anything. After another error, the files that were
// unpacked before it stay. It returns the number of files and links.
func Extract(ctx context.Context, file *os.File, dir string, b Bounds) (files int, err error) {
	b.Entries = cmp.Or(b.Entries, maxEntries)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, err
	}
	defer root.Close()
	byRoom := b.Bytes == 0
	if byRoom {
		if b.Bytes, err = roomBelow(root); err != nil {
			return 0, err
		}
	}
	u := &unpacker{
		ctx: ctx, root: root, bounds: b, left: b.Bytes, seen: map[string]bool{}, buffer: make([]byte, bufferSize),
		byRoom: byRoom && b.Bytes < DefaultBytes,
	}
	defer u.leave()
	if err := u.unpack(file); err != nil {
		return u.files, err
	}
	return u.files, u.finish()
}

// Room returns how many bytes may be written to the file system of file: nine tenths of its free space, at most
// [DefaultBytes].
func Room(file *os.File) (int64, error) {
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &stat); err != nil {
		return 0, fmt.Errorf("find the free space of %s: %w", file.Name(), err)
	}
	blocks := min(stat.Bavail, math.MaxInt64/uint64(stat.Bsize))
	return min(int64(blocks)*stat.Bsize/10*9, DefaultBytes), nil
}

func roomBelow(root *os.Root) (int64, error) {
	dir, err := root.Open(".")
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	return Room(dir)
}

// unpacker writes the entries of one archive.
type unpacker struct {
	ctx    context.Context // of the single call of Extract
	root   *os.Root
	bounds Bounds
	left   int64 // bytes
	byRoom bool  // the bound of the bytes is the free space
	seen   map[string]bool
	files  int
	names  int // bytes of names and of the targets of links that more entries would have to make up for
	links  []link
	dirs   []directory
	buffer []byte
	dry    bool     // only check the entries
	opened string   // the directory in which this user was let write last
	into   *os.Root // the directory of the last file; nil before the first one
	inside string   // its name
}

type link struct{ name, target string }

// directory is a directory whose mode and time are set at the end, because its files change both.
type directory struct {
	name    string
	mode    fs.FileMode
	changed time.Time
}

func (u *unpacker) unpack(file *os.File) error {
	if err := u.check(file); err != nil {
		return err
	}
	u.dry, u.files, u.names, u.left, u.links, u.dirs = false, 0, 0, u.bounds.Bytes, nil, nil
	clear(u.seen)
	return u.read(file)
}

// check reads all entries, and writes nothing.
func (u *unpacker) check(file *os.File) error {
	u.dry = true
	return u.read(file)
}

// read reads all entries.
func (u *unpacker) read(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	begin := make([]byte, 16)
	n, err := file.ReadAt(begin, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	switch begin = begin[:n]; {
	case hasPrefix(begin, "PK\x03\x04"), hasPrefix(begin, "PK\x05\x06"):
		return u.zip(file, info.Size())
	case hasPrefix(begin, "\x28\xb5\x2f\xfd"):
		return u.tar(file, info.Size())
	case n == 0:
		return errors.New("the archive is empty")
	default:
		return fmt.Errorf("the file is neither a zip archive nor a tar archive in zstd: it begins with %q",
			termtext.Short(string(begin), len(begin)))
	}
}

func hasPrefix(b []byte, prefix string) bool { return strings.HasPrefix(string(b), prefix) }

func decoderOptions() []zstd.DOption {
	return []zstd.DOption{
		zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow),
		zstd.WithDecoderMaxMemory(maxWindow),
	}
}

func (u *unpacker) zip(file io.ReaderAt, size int64) error {
	z, err := boundedzip.NewReader(file, size, u.bounds.Entries)
	if err != nil {
		return err
	}
	z.RegisterDecompressor(zstd.ZipMethodWinZip, zstd.ZipDecompressor(decoderOptions()...))
	for _, e := range z.File {
		if u.ctx.Err() != nil {
			return context.Cause(u.ctx)
		}
		if err := u.zipEntry(e); err != nil {
			return entryError(e.Name, err)
		}
	}
	return nil
}

func entryError(name string, err error) error {
	return fmt.Errorf("unpack %q: %w", termtext.Short(name, 200), oserr.Bare(err))
}

func (u *unpacker) tooLarge() error {
	if u.byRoom {
		return fmt.Errorf("the files of the archive are larger than %d bytes, nine tenths of the free space: %w",
			u.bounds.Bytes, unix.ENOSPC)
	}
	return fmt.Errorf("the files of the archive are larger than the limit of %d bytes, which is --max-extracted-size, or "+
		"else nine tenths of the free space", u.bounds.Bytes)
}

func (u *unpacker) zipEntry(e *zip.File) error {
	mode := e.Mode()
	if strings.HasSuffix(e.Name, "/") {
		mode = fs.ModeDir | mode.Perm()
	}
	r, err := e.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	size := int64(min(e.UncompressedSize64, math.MaxInt64))
	return u.entry(e.Name, mode, e.FileInfo(), size, r, func() (string, error) {
		target, err := io.ReadAll(io.LimitReader(r, maxPath+1))
		return string(target), err
	})
}

func (u *unpacker) tar(file io.ReaderAt, size int64) error {
	// The next block is decoded while this one is written.
	options := append(decoderOptions(), zstd.WithDecoderConcurrency(2))
	z, err := zstd.NewReader(io.NewSectionReader(file, 0, size), options...)
	if err != nil {
		return err
	}
	defer z.Close()
	t := tar.NewReader(untilEnd{u.ctx, z})
	for n := 0; ; n++ {
		h, err := t.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && !errors.Is(err, tar.ErrInsecurePath):
			return fmt.Errorf("read the tar archive: %w", err)
		case n >= u.bounds.Entries:
			return fmt.Errorf("the archive has more than %d entries", u.bounds.Entries)
		}
		info := h.FileInfo()
		mode := info.Mode()
		if h.Typeflag == tar.TypeLink {
			mode = fs.ModeIrregular
		}
		err = u.entry(h.Name, mode, info, h.Size, t, func() (string, error) { return h.Linkname, nil })
		if err != nil {
			return entryError(h.Name, err)
		}
	}
}

// entry writes one entry. target returns the target of a link.
func (u *unpacker) entry(name string, mode fs.FileMode, info fs.FileInfo, size int64, r io.Reader,
	target func() (string, error),
) error {
	name = strings.TrimSuffix(strings.TrimPrefix(name, "./"), "/")
	if mode.IsDir() && (name == "" || name == ".") {
		return nil
	}
	if err := checkName(name); err != nil {
		return err
	}
	if u.seen[name] && !mode.IsDir() {
		return errors.New("the name is in the archive twice")
	}
	if err := u.keeps(len(name) - nameSize); err != nil {
		return err
	}
	u.seen[name] = true
	switch {
	case mode.IsDir():
		u.dirs = append(u.dirs, directory{name, mode.Perm(), info.ModTime()})
		if u.dry {
			return nil
		}
		if err := u.open(path.Dir(name)); err != nil {
			return err
		}
		return u.root.MkdirAll(name, 0o777)
	case mode.IsRegular():
		if size < 0 || size > u.left {
			return u.tooLarge()
		}
		u.left -= size
		u.files++
		if u.dry {
			return nil
		}
		return u.file(name, info, size, r)
	case mode.Type() == fs.ModeSymlink:
		to, err := target()
		if err != nil {
			return err
		}
		u.files++
		return u.link(name, to)
	}
	return errors.New("the entry is a device, a pipe, a socket or a hard link; only files, directories and symbolic " +
		"links can be unpacked")
}

// keeps counts the bytes of a name or of a target, which stay in memory until the end.
func (u *unpacker) keeps(n int) error {
	if u.names += n; u.names > nameFloor {
		return fmt.Errorf("the names and links of the archive are longer than %d bytes on average", nameSize)
	}
	return nil
}

// checkName refuses a name that is not a plain path below the directory.
func checkName(name string) error {
	switch {
	case len(name) > maxPath:
		return fmt.Errorf("the entry's name is longer than %d bytes", maxPath)
	case strings.IndexByte(name, 0) >= 0:
		return errors.New("the entry's name has a NUL byte in it")
	case path.IsAbs(name):
		return errors.New("the entry's name is an absolute path, so it would be outside of the project's directory")
	case outside(path.Clean(name)):
		return errors.New("the entry's name has .. in it, so it would be outside of the project's directory")
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." {
			return errors.New("the entry's name has an empty part, . or .. in it")
		}
	}
	return nil
}

// outside reports whether a clean relative path begins with "..".
func outside(p string) bool { return p == ".." || strings.HasPrefix(p, "../") }

// open lets this user write in a directory and in those above it, as far as they are there: those of a module cache are
// read-only.
func (u *unpacker) open(dir string) error {
	if dir == "." || dir == u.opened {
		return nil
	}
	if err := u.open(path.Dir(dir)); err != nil {
		return err
	}
	u.opened = dir
	is, err := u.root.Lstat(dir)
	if err != nil || !is.IsDir() || is.Mode()&0o700 == 0o700 {
		return nil //nolint:nilerr // a missing one is made
	}
	return u.root.Chmod(dir, is.Mode().Perm()|0o700)
}

// enter makes the parent directories of a new file or link, and returns the last of them. It stays open for the next
// file: an archive has the files of a directory one after the other, and each walk from the root opens all directories.
func (u *unpacker) enter(name string) (*os.Root, error) {
	dir := path.Dir(name)
	if u.into != nil && dir == u.inside {
		return u.into, nil
	}
	u.leave()
	if err := u.open(dir); err != nil {
		return nil, err
	}
	err := u.root.MkdirAll(dir, 0o777)
	if err == nil {
		u.into, err = u.root.OpenRoot(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("make its directory: %w", oserr.Bare(err))
	}
	u.inside = dir
	return u.into, nil
}

// leave closes the directory of the last file.
func (u *unpacker) leave() {
	if u.into != nil {
		u.into.Close()
		u.into = nil
	}
}

// remove removes a file or link from a directory, if it is there.
func remove(in *os.Root, base string) error {
	old, err := in.Lstat(base)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case old.IsDir():
		return errors.New("there is a directory of that name")
	}
	return in.Remove(base)
}

func (u *unpacker) file(name string, info fs.FileInfo, size int64, r io.Reader) error {
	in, err := u.enter(name)
	if err != nil {
		return err
	}
	base := path.Base(name)
	create := func() (*os.File, error) { return in.OpenFile(base, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) }
	file, err := create()
	if errors.Is(err, fs.ErrExist) {
		if err = remove(in, base); err == nil {
			file, err = create()
		}
	}
	if err != nil {
		return err
	}
	defer file.Close()
	n, err := io.CopyBuffer(onlyWriter{file}, untilEnd{u.ctx, io.LimitReader(r, size+1)}, u.buffer)
	switch {
	case err != nil:
		return err
	case n != size:
		return fmt.Errorf("the entry's content does not have the %d bytes that the archive says", size)
	}
	if err := file.Chmod(info.Mode().Perm()); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	return in.Chtimes(base, info.ModTime(), info.ModTime())
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

// link keeps a link until all files are written, so that no file is written through it.
func (u *unpacker) link(name, target string) error {
	if target == "" || len(target) > maxPath || strings.IndexByte(target, 0) >= 0 {
		return errors.New("the symbolic link has no valid target")
	}
	if !u.bounds.OutsideLinks && leadsOut(name, target) {
		return leadsOutside(target)
	}
	if err := u.keeps(len(target)); err != nil {
		return err
	}
	u.links = append(u.links, link{name, target})
	return nil
}

// leadsOut reports whether the target of the link name leads out of the archive, without following other links.
func leadsOut(name, target string) bool {
	return path.IsAbs(target) || outside(path.Join(path.Dir(name), target))
}

func leadsOutside(target string) error {
	return fmt.Errorf("the symbolic link leads to %s, outside of the project's directory; to keep such links, set the "+
		"variable STEPMUX_OUTSIDE_LINKS to true", termtext.Short(target, 200))
}

// finish makes the links, and sets the modes and times of directories.
func (u *unpacker) finish() error {
	for _, l := range u.links { // all parents first, so that none is reached through a link of the archive
		in, err := u.enter(l.name)
		if err == nil {
			err = remove(in, path.Base(l.name))
		}
		if err != nil {
			return entryError(l.name, err)
		}
	}
	err := u.makeLinks()
	for _, l := range u.links { // after an error too: some are there
		if !u.bounds.OutsideLinks && u.leaves(l.name) {
			_ = u.root.Remove(l.name)
			err = cmp.Or(err, entryError(l.name, leadsOutside(l.target)))
		}
	}
	if err != nil {
		return err
	}
	for i := len(u.dirs) - 1; i >= 0; i-- {
		d := u.dirs[i]
		if err := u.root.Chmod(d.name, d.mode|0o700); err != nil {
			return entryError(d.name, err)
		}
		if err := u.root.Chtimes(d.name, d.changed, d.changed); err != nil {
			return entryError(d.name, err)
		}
	}
	return nil
}

func (u *unpacker) makeLinks() error {
	for _, l := range u.links {
		if u.ctx.Err() != nil {
			return context.Cause(u.ctx)
		}
		if err := u.root.Symlink(l.target, l.name); err != nil {
			return entryError(l.name, err)
		}
	}
	return nil
}

// leaves reports whether a link leads outside through other links. os.Root refuses to follow such a link, with an error
// that is not a system error. It gives up after 8 links, and Linux only after 40: then Linux is asked.
func (u *unpacker) leaves(name string) bool {
	_, err := u.root.Stat(name)
	switch {
	case err == nil:
		return false
	case errors.Is(err, unix.ELOOP):
		return u.leavesByMany(name)
	}
	_, system := errors.AsType[syscall.Errno](err)
	return !system
}

// leavesByMany is leaves for a link that leads through many others. It returns true if it cannot find out.
func (u *unpacker) leavesByMany(name string) bool {
	dir, err := u.root.Open(".")
	if err != nil {
		return true
	}
	defer dir.Close()
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH}
	fd, err := unix.Openat2(int(dir.Fd()), name, how)
	if err == nil {
		return unix.Close(fd) != nil
	}
	return !errors.Is(err, unix.ELOOP) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR)
}
