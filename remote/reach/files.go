package reach

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/contents"
	"github.com/stepmux/stepmux/internal/rmtree"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

const (
	// maxFiles bounds the files of which processes of a build are told parts from here.
	maxFiles = 64
	// maxTemporary bounds the temporary directories of a job in which an archive is looked for.
	maxTemporary = 1000
	// patience is how long the end of a build waits until an archive is kept.
	patience = 3 * time.Second
	// spare is how many times the size of a file must be free on the disk for the file to be kept.
	spare = 4
)

// files are the files of which processes of a build are told parts: archives of a store. It is safe for concurrent use.
type files struct {
	store *contents.Store // nil if nothing is kept for other builds

	mu  sync.Mutex // guards the following
	all map[string]*file
}

// file is a file of a store. It is open until the build ends, so that its content is checked once.
type file struct {
	store  *contents.Store
	digest string

	mu      sync.Mutex     // guards the following
	whole   *os.File       // nil while the file is not there
	part    *os.File       // has the parts that have arrived; nil if they are not kept
	arrived map[int64]bool // offsets of the parts that have arrived
	missing int64
}

// find returns a file, which need not be there, or nil if it is not kept.
func (f *files) find(digest string, size int64) *file {
	f.mu.Lock()
	one := f.all[digest]
	if one != nil || f.store == nil || len(f.all) == maxFiles || contents.CheckDigest(digest) != nil {
		f.mu.Unlock()
		return one
	}
	one = &file{store: f.store, digest: digest, arrived: map[int64]bool{}, missing: size}
	f.all[digest] = one
	one.mu.Lock() // others wait until its content is checked
	defer one.mu.Unlock()
	f.mu.Unlock()
	var err error
	if one.whole, err = f.store.Find(digest, size); one.whole != nil || err != nil {
		return one
	}
	if f.hasRoom(size) {
		one.part, _ = f.store.Create() // without it nothing is kept
	}
	return one
}

// hasRoom makes room for a file in the store, and reports whether there is enough.
func (f *files) hasRoom(size int64) bool {
	var disk unix.Statfs_t
	return f.store.Sweep(size, nil) == 0 && unix.Statfs(f.store.Dir, &disk) == nil &&
		size < int64(disk.Bavail)*disk.Bsize/spare
}

// close closes all files. Nothing is left of those that have not arrived.
func (f *files) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range f.all {
		one.mu.Lock()
		one.whole.Close() // nil is no file
		one.dropLocked()
		one.mu.Unlock()
	}
}

// dropLocked ends the keeping of a file that has not arrived.
func (f *file) dropLocked() {
	if f.part != nil {
		f.part.Close()
		_ = os.Remove(f.part.Name()) // a sweep may have removed it
		f.part = nil
	}
}

// part is a part of a file that a process is told. Its offset is where it goes on.
type part struct {
	file            *file // nil if it is not kept
	from, at, until int64
}

// tell tells a process the part that a request names, or the beginning of it that is here. It returns the rest.
func (f *files) tell(conn net.Conn, msg *pb.CarryRequest) (told int64, rest part) {
	if msg.GetOffset() < 0 || msg.GetLength() < 0 || msg.GetLength() > msg.GetSize()-msg.GetOffset() {
		return 0, rest
	}
	rest.at, rest.until = msg.GetOffset(), msg.GetOffset()+msg.GetLength()
	if rest.file = f.find(msg.GetDigest(), msg.GetSize()); rest.file != nil {
		told = rest.file.copyTo(conn, rest.at, msg.GetLength())
	}
	rest.at += told
	rest.from = rest.at
	return told, rest
}

// copyTo copies a part of the file, as far as it is here, to a connection, which may break.
func (f *file) copyTo(conn net.Conn, from, length int64) (n int64) {
	f.mu.Lock()
	whole := f.whole
	f.mu.Unlock()
	if whole == nil {
		return 0
	}
	own, err := os.Open(rmtree.PathOf(whole)) // with an offset of its own
	if err != nil {
		return 0
	}
	defer own.Close()
	if _, err = own.Seek(from, io.SeekStart); err == nil {
		n, _ = io.CopyN(conn, own, length) // the rest comes from the manager, or fails
	}
	return n
}

// Write keeps data of the part. It never fails.
func (p *part) Write(data []byte) (n int, _ error) {
	n = len(data)
	f := p.file
	if f == nil || n == 0 {
		return n, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.part == nil {
		return n, nil
	}
	if int64(len(data)) > p.until-p.at {
		data = data[:p.until-p.at]
	}
	if _, err := f.part.WriteAt(data, p.at); err != nil { // the disk is full
		f.dropLocked()
		return n, nil //nolint:nilerr // the process has them
	}
	if p.at += int64(len(data)); p.at < p.until || f.arrived[p.from] {
		return n, nil
	}
	f.arrived[p.from] = true // a client may ask again for a part
	if f.missing -= p.until - p.from; f.missing > 0 {
		return n, nil
	}
	if digest, err := f.store.Adopt(f.part); err != nil || digest != f.digest {
		f.dropLocked() // the open file is another one
		return n, nil
	}
	f.whole, f.part = f.part, nil
	return n, nil
}

// archives are the names that the clients of caches give to an archive, in a directory of its own among the temporary
// ones of its job. They remove it when they have the answer to its upload.
var archives = [...]string{"cache.tzst", "cache.tgz"}

// made opens an archive of size bytes that a process of the build in dir has made for its upload. It returns nil if
// there is no such file, or if the build has too many directories.
func made(dir string, size int64) *os.File {
	temps, _ := filepath.Glob(filepath.Join(dir, "jobs/*/actions/temp")) // the pattern is valid
	for _, temp := range temps {
		root, err := os.Open(temp)
		if err != nil {
			continue
		}
		names, _ := root.Readdirnames(maxTemporary) // as many as can be read
		root.Close()
		for _, name := range names {
			for _, archive := range archives {
				one, err := os.OpenFile(filepath.Join(temp, name, archive), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
				if err != nil {
					continue
				}
				if info, err := one.Stat(); err == nil && info.Mode().IsRegular() && info.Size() == size {
					return one
				}
				one.Close()
			}
		}
	}
	return nil
}

// take keeps an archive that a process has uploaded, if it is the content of the digest, and closes it. It stops when
// closing is closed.
func (f *files) take(from *os.File, digest string, size int64, closing <-chan struct{}) {
	defer from.Close()
	if contents.CheckDigest(digest) != nil || f.store == nil || f.store.Touch(digest) || !f.hasRoom(size) {
		return
	}
	u, err := f.store.Begin(digest, size)
	if err != nil {
		return
	}
	for buf := make([]byte, piece); u.Missing() > 0; {
		n, err := from.Read(buf)
		if err == nil {
			_, err = u.Write(buf[:n])
		}
		select {
		case <-closing:
			err = net.ErrClosed
		default:
		}
		if err != nil {
			u.Discard()
			return
		}
	}
	if kept, err := f.store.Keep(u); err == nil {
		kept.Close()
	}
}
