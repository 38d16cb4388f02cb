package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Open opens the absolute path for reading, as the commands see it: with isolation, hidden files do not exist, also
// behind a symbolic link that a command has made. It starts the init unless there is one, and waits for it. A pipe does
// not block it. Flags to write are refused. Before Linux 5.6 it follows no absolute link.
func (in *Init) Open(path string, flag int, _ fs.FileMode) (*os.File, error) {
	if flag&(os.O_WRONLY|os.O_RDWR|os.O_CREATE|os.O_TRUNC) != 0 || !filepath.IsAbs(path) {
		return nil, &fs.PathError{Op: "open", Path: path, Err: unix.EINVAL}
	}
	flag |= unix.O_NONBLOCK | unix.O_CLOEXEC
	m := in.prepare()
	<-m.done // bounded by launch
	if m.err != nil {
		return nil, fmt.Errorf("open %s: %w", path, m.err)
	}
	if m.link.view == nil {
		return os.OpenFile(path, flag, 0)
	}
	for _, dir := range in.visibleDirs() {
		if rel, err := filepath.Rel(dir, path); err != nil || !filepath.IsLocal(rel) {
			continue
		}
		if err := m.link.show(dir); err != nil {
			return nil, fmt.Errorf("open %s: %w", path, err)
		}
	}
	raw, err := m.link.view.SyscallConn()
	fd := -1
	if err == nil {
		var openErr error
		err = raw.Control(func(root uintptr) { fd, openErr = openIn(int(root), path, flag) })
		err = errors.Join(err, openErr)
	}
	if errno := unix.Errno(0); errors.As(err, &errno) {
		return nil, &fs.PathError{Op: "open", Path: path, Err: errno}
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, errInit)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Show makes a directory visible for Open until done is called, as the Visible of a Command does. It does no I/O. The
// commands of the Init then see the directory, too.
func (in *Init) Show(dir string) (done func()) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.visible = append(in.visible, dir)
	return sync.OnceFunc(func() {
		in.mu.Lock()
		defer in.mu.Unlock()
		i := slices.Index(in.visible, dir)
		in.visible = slices.Delete(in.visible, i, i+1)
	})
}

func (in *Init) visibleDirs() []string {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.Clone(in.visible)
}

// openIn opens path as a process does whose root directory is root.
func openIn(root int, path string, flag int) (int, error) {
	how := unix.OpenHow{Flags: uint64(flag), Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	for {
		fd, err := unix.Openat2(root, path, &how)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR): // a file was renamed in the meantime
			continue
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM): // before Linux 5.6, or behind a filter for system calls
			return openBelow(root, path, flag)
		default:
			return fd, err
		}
	}
}

// openBelow does the same as openIn, without openat2(2).
func openBelow(root int, path string, flag int) (int, error) {
	below, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", root))
	if err != nil {
		return -1, err
	}
	defer below.Close()
	file, err := below.OpenFile(filepath.Clean("."+path), flag, 0)
	if err != nil {
		return -1, err
	}
	defer file.Close()
	return unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
}

// sendReady reports that the init is ready. With isolation it also sends the root directory of the commands.
func (k *keeper) sendReady() {
	var rights []byte
	if k.isolated {
		if root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
			defer func() { _ = unix.Close(root) }()
			rights = unix.UnixRights(root)
		}
	}
	packet := new(strings.Builder)
	report{Kind: reportReady}.send(packet)
	_ = unix.Sendmsg(controlFD, []byte(packet.String()), rights, nil, 0) // ignores errors: the server may be gone
}

// receiveReport reads a packet of the init, which may carry a file. At the channel's end the error is io.EOF.
func (l *link) receiveReport(packet []byte) (n int, file *os.File, err error) {
	raw, err := l.control.SyscallConn()
	if err != nil {
		return 0, nil, err
	}
	var fds []int
	var receiveErr error
	err = raw.Read(func(fd uintptr) bool {
		n, fds, receiveErr = receivePacket(int(fd), packet, 1)
		return !errors.Is(receiveErr, unix.EAGAIN)
	})
	if err = errors.Join(err, receiveErr); err != nil || len(fds) == 0 {
		return n, nil, err
	}
	return n, os.NewFile(uintptr(fds[0]), "/"), nil
}
