package socketdir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/wire"
)

// Connect connects to the unix socket path, in any directory. It refuses a socket unless the process that listens on it
// belongs to our user or to root. Errors with a known cause are [wire.RelayResponse].
func Connect(ctx context.Context, path string) (*net.UnixConn, error) {
	if err := wire.CheckSocketPath(path); err != nil {
		return nil, err
	}
	fi, err := os.Lstat(path)
	if err == nil {
		err = isSocket(path, fi)
	}
	if err != nil {
		return nil, inspectError(path, err)
	}
	return dial(ctx, path, path, os.Geteuid())
}

// ConnectBuild connects to the socket of a build, <tmp>/<base>/<build id>/<name>. [CheckBuild] must have returned nil
// for it.
//
// The base, the build's directory and the listening process must be ours. If we are root, they may belong to any one
// user, so that root reaches builds that run as another user. From the base on ConnectBuild follows no symbolic link,
// and it connects to the very socket that it has checked. Errors with a known cause are [wire.RelayResponse].
func ConnectBuild(ctx context.Context, path string) (*net.UnixConn, error) {
	socket, owner, err := openSocket(path)
	if err != nil {
		return nil, inspectError(path, err)
	}
	defer socket.Close()
	return dial(ctx, fmt.Sprintf("/proc/self/fd/%d", socket.Fd()), path, owner)
}

// CheckBuild returns nil if path is the path of a build's socket in a base of our user in tmp, or of any user if we are
// root. Otherwise it returns a [wire.RelayResponse].
func CheckBuild(tmp, path string) error {
	base, _, err := splitPath(path)
	ours := os.Geteuid() == 0 || slices.Contains(ourBases(), filepath.Base(base))
	if err == nil && (filepath.Dir(base) != tmp || !ours) {
		err = fmt.Errorf("socket path %.160q is not one of our builds here", path)
	}
	if err == nil {
		return nil
	}
	return wire.RefuseRelay(wire.RelayForbidden, "%v: this relay connects to %s/<build id>/<socket name> only",
		err, filepath.Join(tmp, "{"+strings.Join(ourBases(), ",")+"}"))
}

// dial connects to the socket path of user owner. address is another name of the socket, or path.
func dial(ctx context.Context, address, path string, owner int) (*net.UnixConn, error) {
	nc, err := new(net.Dialer).DialContext(ctx, "unix", address)
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return nil, wire.RefuseRelay(wire.RelayNotFound,
			"connect to %s: no process listens there: its serve has died; start the build again", path)
	case errors.Is(err, unix.EAGAIN):
		return nil, wire.RefuseRelay(wire.RelayBusy, "connect to %s: too many connections wait to be accepted", path)
	case err != nil:
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op.Err
		}
		return nil, fmt.Errorf("connect to %s: %w", path, oserr.Hint(err, path))
	}
	conn, ok := nc.(*net.UnixConn)
	if !ok {
		panic(fmt.Sprintf("BUG: dialing a unix socket gave a %T", nc))
	}
	if err := checkPeer(conn, owner); err != nil {
		_ = conn.Close()
		return nil, wire.RefuseRelay(wire.RelayForbidden, "connect to %s: %v", path, err)
	}
	if err := keepUrgent(conn); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	return conn, nil
}

// keepUrgent makes bytes that the peer sends out of band (MSG_OOB) ordinary ones. The kernel counts them among those
// that wait, but splice(2) would skip them, and a relay wait for them forever.
func keepUrgent(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_OOBINLINE, 1) })
	return errors.Join(err, failed)
}

// inspectError turns err, of checking path before a connect, into the error of the connect.
func inspectError(path string, err error) error {
	found, refused := (*FoundError)(nil), wire.RelayResponse{}
	switch {
	case errors.As(err, &refused):
		return refused
	case errors.Is(err, fs.ErrNotExist):
		return wire.RefuseRelay(wire.RelayNotFound,
			"connect to %s: there is no such socket: the build has ended, or its serve has not started", path)
	case errors.As(err, &found):
		return wire.RefuseRelay(wire.RelayForbidden, "connect to %s: %v", path, err)
	}
	return fmt.Errorf("connect to %s: %w", path, oserr.Hint(oserr.Bare(err), path))
}

// openSocket opens the socket itself (O_PATH, open(2)), so that no process can put another one in its place, and
// returns the user of its build. The error is a *FoundError or a [wire.RelayResponse] if the path is not ours or not a
// socket.
func openSocket(path string) (at *os.File, owner int, err error) {
	build := filepath.Dir(path)
	base := filepath.Dir(build)
	root, err := openTmp(filepath.Dir(base))
	if err != nil {
		return nil, 0, err
	}
	defer root.Close()
	if at, err = root.Open("."); err != nil {
		return nil, 0, oserr.Bare(err)
	}
	owner = os.Geteuid()
	ours := func(path string, fi fs.FileInfo) error {
		if path == base && owner == 0 {
			owner = ownerOf(fi)
		}
		return dirOf(owner, path, fi)
	}
	for _, next := range []struct {
		path  string
		check func(string, fs.FileInfo) error
	}{{base, ours}, {build, ours}, {path, isSocket}} {
		dir := at
		at, err = openAt(dir, next.path, next.check)
		dir.Close()
		if err != nil {
			return nil, 0, err
		}
	}
	return at, owner, nil
}

// isSocket returns a [wire.RelayResponse] unless fi, of path, is a socket. Any user may own it: dial checks the user
// that listens.
func isSocket(path string, fi fs.FileInfo) error {
	if fi.Mode().Type() == fs.ModeSocket {
		return nil
	}
	return wire.RefuseRelay(wire.RelayForbidden, "connect to %s: it is %s, not a socket", path, kind(fi.Mode()))
}

// openAt opens path, an entry of dir, if check accepts it.
func openAt(dir *os.File, path string, check func(string, fs.FileInfo) error) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), filepath.Base(path), unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	fi, err := f.Stat()
	if err == nil {
		err = check(path, fi)
	}
	if err != nil {
		f.Close()
		return nil, oserr.Bare(err)
	}
	return f, nil
}
