package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/filelock"
)

// ErrSeveral is wrapped by the error of Find if several runs are under way.
var ErrSeveral = errors.New("runs are under way")

// ErrNone is wrapped by the error of Find if no run is under way.
var ErrNone = errors.New("no stepmux run of this user is under way")

const (
	// maxPath is how long the path of a unix socket may be on Linux (unix(7)).
	maxPath = 107
	// listenTries bounds how often a directory is made again that another, ending manager has removed.
	listenTries = 20
	// aliveTimeout bounds the wait for a manager to accept a connection, which its kernel does.
	aliveTimeout = time.Second
	// lockTimeout bounds the wait for other managers that are making a socket in the same directory.
	lockTimeout  = 5 * time.Second
	socketSuffix = ".sock"
)

// Dir returns the default directory for the control sockets of this user's managers.
func Dir() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "stepmux")
	}
	return filepath.Join(os.TempDir(), "stepmux-run-"+strconv.Itoa(os.Getuid()))
}

// Find returns the path of the only socket in Dir that a run listens on.
func Find() (string, error) {
	dir := Dir()
	if err := CheckDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	alive := slices.DeleteFunc(sockets(dir), func(path string) bool { return !isAlive(path) })
	switch len(alive) {
	case 0:
		return "", fmt.Errorf("%w (there is no socket in %s); "+
			"if it was started with --control, or by another user, name its socket with --control", ErrNone, dir)
	case 1:
		return alive[0], nil
	default:
		return "", fmt.Errorf("%d %w; name the socket of one with --control: %s", len(alive), ErrSeveral,
			strings.Join(alive, " "))
	}
}

// listen makes the socket at path, or in Dir if path is empty. If it creates a directory for the socket, it returns
// that directory, to be removed together with the socket.
func listen(path string) (listener *net.UnixListener, dir string, err error) {
	if path != "" {
		listener, err = listenIn(filepath.Dir(path), filepath.Base(path), false)
		return listener, "", err
	}
	dir = Dir()
	for range listenTries {
		if err = MakeDir(dir); err == nil {
			listener, err = listenIn(dir, strconv.Itoa(os.Getpid())+socketSuffix, true)
		}
		// The directory was removed before the socket was in it. By now another manager may have created it again.
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return listener, dir, err
}

// Listen makes a socket at a path for a service of a manager. Its user and root may connect and, unless group is -1,
// the members of that group, by the socket's mode. The socket of a dead manager is replaced. The caller closes the
// listener.
func Listen(path string, group int) (net.Listener, error) {
	listener, err := listenIn(filepath.Dir(path), filepath.Base(path), false)
	if err != nil {
		return nil, err
	}
	if group < 0 {
		return ownListener{listener}, nil
	}
	err = os.Chown(path, -1, group)
	if err == nil {
		err = os.Chmod(path, 0o660)
	}
	if err != nil {
		_ = listener.Close() // it cannot be used
		return nil, fmt.Errorf("socket for the group %d: %w", group, err)
	}
	return listener, nil
}

// Check returns why Listen would refuse a path and a group, and makes nothing. A manager may listen there already. made
// is a directory that is made before that, or empty.
func Check(path string, group int, made string) error {
	if err := checkPath(path); err != nil {
		return err
	}
	dir := filepath.Dir(path)
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil && (!errors.Is(err, fs.ErrNotExist) || dir != made) {
		return fmt.Errorf("control socket in %s: %w", dir, err)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return errNoSocket(path)
	}
	if groups, err := os.Getgroups(); group >= 0 && os.Geteuid() != 0 && os.Getegid() != group && err == nil &&
		!slices.Contains(groups, group) {
		return fmt.Errorf("socket for the group %d: this user is none of its members", group)
	}
	return nil
}

// checkPath returns an error if the path of a socket is too long.
func checkPath(path string) error {
	if len(path) > maxPath {
		return fmt.Errorf("control socket %s: the path has more than %d bytes", path, maxPath)
	}
	return nil
}

// errNoSocket says that a path is taken.
func errNoSocket(path string) error {
	return fmt.Errorf("control socket %s: the path exists and is not a socket; name another path", path)
}

// MakeDir creates a directory for this user only, or checks that an existing one is.
func MakeDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make directory for control socket: %w", err)
	}
	return CheckDir(dir)
}

// CheckDir returns an error unless dir is a directory of this user's in which no other user can put a socket.
func CheckDir(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("directory for control socket: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(stat.Uid) != os.Geteuid() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("directory for control socket: %s is not a directory of this user's with mode 0700; remove it, "+
			"or name a socket elsewhere", dir)
	}
	return nil
}

// listenIn makes a socket in dir. Managers do that one at a time, because each may find and replace the socket of a
// dead manager.
func listenIn(dir, name string, sweep bool) (*net.UnixListener, error) {
	path := filepath.Join(dir, name)
	if err := checkPath(path); err != nil {
		return nil, err
	}
	lock, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	defer lock.Close() // also releases the lock
	if err := lockDir(lock); err != nil {
		return nil, fmt.Errorf("control socket: lock %s: %w", dir, err)
	}
	if sweep {
		for _, killed := range sockets(dir) {
			_ = removeStale(killed) // those that remain are in use
		}
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = listener.Close() // it fails anyway
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return listener, nil
}

// lockDir locks an open directory, until it is closed. In a directory that everybody can open, another user may hold
// the lock for ever, so the wait is bounded.
func lockDir(dir *os.File) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), lockTimeout, unix.EWOULDBLOCK)
	defer cancel()
	return filelock.Wait(ctx, dir)
}

// removeStale removes the socket of a dead manager. If the manager lives, or the path is something else, it returns
// an error.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("control socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return errNoSocket(path)
	case isAlive(path):
		return fmt.Errorf("control socket %s: another stepmux run or manager uses it; name another path", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("control socket: remove that of a dead run: %w", err)
	}
	return nil
}

// isAlive reports whether a process listens on a socket. If that is unclear, it returns true.
func isAlive(path string) bool {
	conn, err := net.DialTimeout("unix", path, aliveTimeout)
	if err == nil {
		conn.Close()
		return true
	}
	return !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist)
}

// sockets returns the paths of the sockets in a directory, sorted.
func sockets(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var all []string
	for _, e := range entries {
		if e.Type() == fs.ModeSocket && strings.HasSuffix(e.Name(), socketSuffix) {
			all = append(all, filepath.Join(dir, e.Name()))
		}
	}
	return all
}

// ownListener accepts connections of its own user and of root only.
type ownListener struct{ *net.UnixListener }

// Accept implements net.Listener.
func (l ownListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if peer, err := peerOf(conn); err == nil && allowed(peer.UID) {
			return conn, nil
		}
		_ = conn.Close() // from another user
	}
}

func allowed(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }
