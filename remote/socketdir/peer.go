package socketdir

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/oserr"
)

// Listen returns a listener on the unix socket path, of mode 0600. It accepts connections of our own user and of root,
// closes those of other users, and calls refused with the reason. The socket's directory must be private, because for a
// moment the socket has another mode.
func Listen(path string, refused func(error)) (net.Listener, error) {
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err == nil {
		if err = os.Chmod(path, 0o600); err != nil {
			_ = ln.Close()
		}
	}
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op.Err
		}
		return nil, fmt.Errorf("listen on %s: %w", path, oserr.Hint(oserr.Bare(err), path))
	}
	return &peerListener{ln, refused}, nil
}

// peerListener accepts connections of our own user and of root.
type peerListener struct {
	*net.UnixListener
	refused func(error)
}

// Accept implements net.Listener.
func (l *peerListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		err = checkPeer(conn, os.Geteuid())
		if err == nil {
			return conn, nil
		}
		_ = conn.Close()
		l.refused(err)
	}
}

// Listener returns the pid of the process that listens on the socket of a build (SO_PEERCRED, unix(7)), even if it is
// stopped. The errors are those of [ConnectBuild].
func Listener(ctx context.Context, path string) (pid int, err error) {
	conn, err := ConnectBuild(ctx, path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	cred, err := peerOf(conn)
	if err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}

// checkPeer returns an error unless the process at the other end of conn ran as user us, or as root, when it connected
// or listened. us is our own user, except when root connects to a build of another user.
func checkPeer(conn *net.UnixConn, us int) error {
	cred, err := peerOf(conn)
	if err != nil {
		return err
	}
	if int64(cred.Uid) != int64(us) && cred.Uid != 0 {
		return fmt.Errorf("at the other end is process %d of user %d, which is neither us (user %d) nor root",
			cred.Pid, cred.Uid, us)
	}
	return nil
}

// peerOf returns the credentials of the process at the other end of conn from the time when it connected or listened
// (SO_PEERCRED, unix(7)).
func peerOf(conn *net.UnixConn) (*unix.Ucred, error) {
	rc, err := conn.SyscallConn()
	var cred *unix.Ucred
	if err == nil {
		var fail error
		err = rc.Control(func(fd uintptr) {
			cred, fail = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		})
		err = errors.Join(err, fail)
	}
	if err != nil {
		return nil, fmt.Errorf("identify peer: %w", err)
	}
	return cred, nil
}
