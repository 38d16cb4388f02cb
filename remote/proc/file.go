package proc

import (
	"errors"
	"io/fs"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// file holds the content of a file of a process in /proc at the time when it was read.
type file struct{ data []byte }

// files holds the memory of released files. A sweep reads three files of each process of the machine: new memory for
// each would be most of the memory of a serve.
var files = sync.Pool{New: func() any { return new(file) }}

// maxKept is the largest file that release keeps, in bytes.
const maxKept = 64 << 10

// maxRead is where readFile stops, in bytes. A process can say that its environment or its arguments are all of its
// memory (PR_SET_MM_MAP, prctl(2)); the kernel starts no process with that much.
const maxRead = 2 * maxCommand

// readFile reads the file name of process pid, up to maxRead and a little more. The caller must release it.
func readFile(pid int, name string) (*file, error) {
	path := "/proc/" + strconv.Itoa(pid) + "/" + name
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	f := files.Get().(*file)
	f.data = f.data[:0]
	for {
		if cap(f.data)-len(f.data) < 512 {
			f.data = append(make([]byte, 0, max(2*cap(f.data), 4096)), f.data...)
		}
		n, err := retry(func() (int, error) { return unix.Read(fd, f.data[len(f.data):cap(f.data)]) })
		if err != nil {
			f.release()
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		if f.data = f.data[:len(f.data)+n]; n == 0 || len(f.data) >= maxRead {
			return f, nil
		}
	}
}

// release makes the memory available to other reads. It must be called once.
func (f *file) release() {
	if cap(f.data) <= maxKept {
		files.Put(f)
	}
}

// retry repeats the system call as long as a signal interrupts it.
func retry(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
