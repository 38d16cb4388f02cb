package remote

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// listen returns a listener on the unix socket path with mode 0600. The directory must be private: there
// is a moment before the mode is set.
func listen(path string, log *notices) (*peerListener, error) {
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
		return nil, fmt.Errorf("listen on %s: %w", path, hint(bare(err), path))
	}
	return &peerListener{UnixListener: ln, log: log, conns: make(map[*peerConn]struct{})}, nil
}

// peerListener accepts connections of our own user and of root. It knows those that are open.
type peerListener struct {
	*net.UnixListener

	log *notices

	mu    sync.Mutex // guards the following
	conns map[*peerConn]struct{}
}

// Accept implements net.Listener. Connections of other users are closed and noted.
func (l *peerListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if err := checkPeer(conn); err != nil {
			_ = conn.Close()
			l.log.printf("refused a connection: %v", err)
			continue
		}
		c := &peerConn{UnixConn: conn, l: l}
		l.mu.Lock()
		l.conns[c] = struct{}{}
		l.mu.Unlock()
		return c, nil
	}
}

// closeConns closes the connections that are open.
func (l *peerListener) closeConns() {
	l.mu.Lock()
	conns := make([]*peerConn, 0, len(l.conns))
	for c := range l.conns {
		conns = append(conns, c)
	}
	l.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

// peerConn is a connection its listener knows of.
type peerConn struct {
	*net.UnixConn

	l *peerListener
}

// Close implements net.Conn. It is idempotent but for its error.
func (c *peerConn) Close() error {
	c.l.mu.Lock()
	delete(c.l.conns, c)
	c.l.mu.Unlock()
	return c.UnixConn.Close()
}

// checkPeer returns an error unless the process at the other end of conn ran as our own user or as root
// when it connected or listened (SO_PEERCRED, unix(7)).
func checkPeer(conn *net.UnixConn) error {
	rc, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("identify peer: %w", err)
	}
	var (
		cred *unix.Ucred
		fail error
	)
	err = rc.Control(func(fd uintptr) {
		cred, fail = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err == nil {
		err = fail
	}
	if err != nil {
		return fmt.Errorf("identify peer: %w", err)
	}
	if us := os.Geteuid(); int64(cred.Uid) != int64(us) && cred.Uid != 0 {
		return fmt.Errorf("at the other end is process %d of user %d, which is neither us (user %d) nor root", cred.Pid, cred.Uid, us)
	}
	return nil
}
