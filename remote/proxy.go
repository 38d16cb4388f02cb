package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/wire"
)

// ProxyConfig says what Proxy connects to.
type ProxyConfig struct {
	// Socket is the path of the build's socket, as serve's ready marker shows it. If SocketOnStdin, it is the
	// first line of stdio.In, which is no part of what is carried.
	Socket string
}

// Proxy connects to a build's socket and carries bytes: stdio.In to the socket, the socket to stdio.Out.
// It does not look at them, and writes nothing else to Out.
//
// The end of either direction is passed on while the other goes on: the end of In ends the connection's
// sending half, the end of what the server sends closes Out. Proxy returns nil when both have ended, or
// when the server has gone, even if In is open then. It returns the reason if In fails, Out cannot be
// written, or ctx ends. All it started has ended then; In is open, and Out too unless it was ended.
//
// It only connects to a socket on which a process of our own user, or of root, listens. From its call on other
// processes of the user cannot look into this one (PR_SET_DUMPABLE, prctl(2)).
func Proxy(ctx context.Context, stdio Stdio, cfg ProxyConfig) error {
	if err := conceal(); err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	var first []byte
	if cfg.Socket == SocketOnStdin {
		var err error
		if cfg.Socket, first, err = socketLine(ctx, stdio.In); err != nil {
			return fmt.Errorf("proxy: %w", err)
		}
		if cfg.Socket == "" {
			return nil
		}
	}
	conn, err := dial(ctx, cfg.Socket)
	if err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	defer func() { _ = conn.Close() }()
	in, restoreIn, err := wakeable(stdio.In)
	if err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	defer restoreIn()
	defer in.Close()
	out, restoreOut, err := wakeable(stdio.Out)
	if err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	defer restoreOut()
	defer out.Close()
	widen(in)
	widen(out)
	rawIn, inErr := rawOf(in, in.Name())
	rawOut, outErr := rawOf(out, out.Name())
	rawSocket, socketErr := rawOf(conn, cfg.Socket)
	if err := errors.Join(inErr, outErr, socketErr); err != nil {
		return fmt.Errorf("proxy: %w", err)
	}

	// Closing all three wakes whoever waits for one of them.
	closeAll := func() {
		_ = conn.Close()
		in.Close()
		out.Close()
	}
	stop := context.AfterFunc(ctx, closeAll)
	defer stop()

	var wg sync.WaitGroup // waited for below
	var upErr error
	up := make(chan struct{}) // closed once upErr is set
	wg.Go(func() {
		defer close(up)
		upErr = sendUp(rawSocket, conn, io.MultiReader(bytes.NewReader(first), rawIn), closeAll)
	})
	err = copyBytes(rawOut, rawSocket)
	if err == nil {
		out.Close()
		restoreOut()
		endOutput(stdio.Out)
		wg.Go(func() {
			waitHangup(conn)
			in.Close()
		})
		<-up
	}
	closeAll()
	wg.Wait()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("proxy: %w", context.Cause(ctx))
	case upErr != nil:
		return fmt.Errorf("proxy: stdin: %w", upErr)
	case errors.Is(err, errRead) && errors.Is(err, unix.ECONNRESET):
		return nil // the server has gone without reading all we sent
	case errors.Is(err, errRead):
		return fmt.Errorf("proxy: %s: %w", cfg.Socket, err)
	case err != nil:
		return fmt.Errorf("proxy: stdout: %w", bare(err))
	}
	return nil
}

// sendUp copies in to the socket, which is conn's, and ends conn's sending half with it. If in fails rather than ends, the whole
// proxy does, by calling closeAll: what was cut off must not look complete.
func sendUp(socket io.Writer, conn *net.UnixConn, in io.Reader, closeAll func()) error {
	err := copyBytes(socket, in)
	switch {
	case err == nil:
		_ = conn.CloseWrite()
	case errors.Is(err, errRead) && !errors.Is(err, os.ErrClosed):
		closeAll()
		return err
	}
	// Otherwise the server takes no more, but it may still have something to say.
	return nil
}

// endOutput shows the end of the output to who reads it. A socket may be our stdin as well, so that
// closing one of the two descriptors would show nothing.
func endOutput(out *os.File) {
	if rc, err := out.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
	out.Close()
}

// waitHangup waits until the other side has closed conn, not only ended its sending half, or conn is
// closed here. Nobody may read from conn meanwhile.
func waitHangup(conn *net.UnixConn) {
	rc, err := conn.SyscallConn()
	if err != nil {
		return
	}
	_ = rc.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd)}}, 0) // no events: a hang-up is always told
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
}

// dial connects to the unix socket path. Its errors tell the operator what is the matter.
func dial(ctx context.Context, path string) (*net.UnixConn, error) {
	if err := wire.CheckSocketPath(path); err != nil {
		return nil, err
	}
	fi, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("connect to %s: there is no such socket: the build has ended, or its serve has not started", path)
	case err != nil:
		return nil, fmt.Errorf("connect to %s: %w", path, hint(bare(err), path))
	case fi.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("connect to %s: it is %s, not a socket", path, kind(fi.Mode()))
	}
	nc, err := new(net.Dialer).DialContext(ctx, "unix", path)
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return nil, fmt.Errorf("connect to %s: nobody listens on it: its serve has died; start the build again", path)
	case err != nil:
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op.Err
		}
		return nil, fmt.Errorf("connect to %s: %w", path, hint(err, path))
	}
	conn, ok := nc.(*net.UnixConn)
	if !ok {
		panic(fmt.Sprintf("BUG: dialing a unix socket gave a %T", nc))
	}
	if err := checkPeer(conn); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	return conn, nil
}
