package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/wire"
)

// errHungUp is the cause of a context that ended because the manager has closed the stream.
var errHungUp = errors.New("the manager has closed the stream")

// connect does a connect request: it joins s and a socket.
func (s *relayStream) connect(request *wire.RelayConnect) {
	ctx, cancel := context.WithCancelCause(s.relay.life)
	b := &bridge{relayStream: s, cancel: cancel, connected: make(chan struct{})}
	var up sync.WaitGroup
	up.Go(func() { cancel(b.sendUp(ctx)) })
	defer up.Wait()
	defer s.wake()
	defer cancel(nil)
	var err error
	if b.conn, err = s.reach(ctx, request); err != nil {
		s.answer(err)
		return
	}
	if b.socket, err = rawOf(b.conn, request.Path); err != nil {
		s.answer(err)
		_ = b.conn.Close()
		return
	}
	defer func() { _ = b.conn.Close() }()
	stop := context.AfterFunc(ctx, func() { // wakes who waits for either
		_ = b.conn.Close()
		_ = s.raw.SetWriteDeadline(time.Unix(1, 0)) // never fails
	})
	defer stop()
	s.answer(nil)
	close(b.connected)
	b.sendDown()
}

// reach connects to the socket of the request, which may not be there yet.
func (s *relayStream) reach(ctx context.Context, request *wire.RelayConnect) (*net.UnixConn, error) {
	if err := s.relay.checkPath(request.Path); err != nil {
		return nil, err
	}
	path := request.Path
	if request.Wait > 0 {
		var err error
		if path, err = s.awaitReady(ctx, path, request.Wait); err != nil {
			return nil, err
		}
	}
	return dialBuild(ctx, path)
}

// awaitReady waits until a process listens on path, and returns the path it told.
func (s *relayStream) awaitReady(ctx context.Context, path string, most time.Duration) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, most,
		&refusal{wire.RelayNotReady, fmt.Sprintf("nobody came to listen on %s within %v", path, most)})
	defer cancel()
	told, err := s.relay.sockets.await(ctx, path, s.relay.closing)
	if err != nil {
		return "", err
	}
	return told, s.relay.checkPath(told)
}

// checkPath refuses what is not the path of a build's socket in a base of our user.
func (r *relay) checkPath(path string) error {
	base, _, err := splitSocketPath(path)
	if err == nil && (filepath.Dir(base) != r.tempDir || !slices.Contains(ourBases(), filepath.Base(base))) {
		err = fmt.Errorf("socket path %.160q is not one of our builds here", path)
	}
	if err == nil {
		return nil
	}
	return &refusal{wire.RelayForbidden, fmt.Sprintf("%v: this relay connects to %s/<build id>/<socket name> only",
		err, filepath.Join(r.tempDir, "{"+strings.Join(ourBases(), ",")+"}"))}
}

// dialBuild connects to the socket path, <tmp>/<base>/<build id>/<name>. Base and directory must be ours, and
// no symbolic link is followed from the base on: what was looked at is what is connected to. Its errors tell
// the operator what is the matter; where that is known they are refusals.
func dialBuild(ctx context.Context, path string) (*net.UnixConn, error) {
	socket, err := openSocket(path)
	found, refused := (*foundError)(nil), (*refusal)(nil)
	switch {
	case errors.As(err, &refused):
		return nil, refused
	case errors.Is(err, fs.ErrNotExist):
		return nil, &refusal{wire.RelayNotFound, fmt.Sprintf(
			"connect to %s: there is no such socket: the build has ended, or its serve has not started", path)}
	case errors.As(err, &found):
		return nil, &refusal{wire.RelayForbidden, fmt.Sprintf("connect to %s: %v", path, err)}
	case err != nil:
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	defer socket.Close()
	nc, err := new(net.Dialer).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", socket.Fd()))
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return nil, &refusal{wire.RelayNotFound, fmt.Sprintf(
			"connect to %s: nobody listens on it: its serve has died; start the build again", path)}
	case errors.Is(err, unix.EAGAIN):
		return nil, &refusal{wire.RelayBusy, fmt.Sprintf("connect to %s: too many connections wait to be accepted", path)}
	case err != nil:
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op.Err
		}
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	conn, ok := nc.(*net.UnixConn)
	if !ok {
		panic(fmt.Sprintf("BUG: dialing a unix socket gave a %T", nc))
	}
	if err := checkPeer(conn); err != nil {
		_ = conn.Close()
		return nil, &refusal{wire.RelayForbidden, fmt.Sprintf("connect to %s: %v", path, err)}
	}
	return conn, nil
}

// openSocket opens the socket itself (O_PATH, open(2)), so that nobody can put another one in its place. What
// is not ours, or something else, is a *foundError.
func openSocket(path string) (*os.File, error) {
	build := filepath.Dir(path)
	base := filepath.Dir(build)
	root, err := openTmp(filepath.Dir(base))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	dir, err := root.Open(".")
	if err != nil {
		return nil, bare(err)
	}
	defer dir.Close()
	baseDir, err := openAt(dir, base, ourDir)
	if err != nil {
		return nil, err
	}
	defer baseDir.Close()
	buildDir, err := openAt(baseDir, build, ourDir)
	if err != nil {
		return nil, err
	}
	defer buildDir.Close()
	return openAt(buildDir, path, isSocket)
}

// isSocket is ourDir for a socket. Whose it is does not matter: who listens is asked.
func isSocket(path string, fi fs.FileInfo) error {
	if fi.Mode().Type() == fs.ModeSocket {
		return nil
	}
	return &refusal{wire.RelayForbidden, fmt.Sprintf("connect to %s: it is %s, not a socket", path, kind(fi.Mode()))}
}

// openAt opens path, which is in dir, if check has nothing against what is there.
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
		return nil, bare(err)
	}
	return f, nil
}

// bridge is a stream and the socket it is joined to.
type bridge struct {
	*relayStream
	cancel    context.CancelCauseFunc // closes conn
	connected chan struct{}           // closed once conn and socket are set
	conn      *net.UnixConn
	socket    rawFile // is conn
}

// sendUp takes the manager's frames to the socket, once there is one. It returns when the manager has closed
// the stream, says what makes no sense, or ctx ends.
func (b *bridge) sendUp(ctx context.Context) error {
	if _, err := b.in.Peek(1); err != nil {
		return errHungUp // while it waits, perhaps
	}
	select {
	case <-b.connected:
	case <-ctx.Done():
		return nil
	}
	ended := false
	for ctx.Err() == nil {
		kind, n, err := b.next()
		switch {
		case err != nil:
			return errHungUp
		case kind == wire.FrameData && !ended:
			err = b.copyUp(n)
		case kind == wire.FrameEnd && !ended && n == 0:
			ended = true
			_ = b.conn.CloseWrite() // fails if the server has gone, which sendDown finds
		default:
			err = fmt.Errorf("%w: a frame %q of %d bytes to a socket", wire.ErrRelayProtocol, kind, n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copyUp takes a payload of n bytes to the socket. A server that takes no more may still have something to
// say.
func (b *bridge) copyUp(n int) error {
	f := getFrame()
	defer frames.Put(f)
	if _, err := io.ReadFull(b.in, f[:n]); err != nil {
		return errHungUp
	}
	_, _ = b.socket.Write(f[:n])
	return nil
}

// sendDown takes what the server sends to the manager, and returns once the server has hung up or the bridge
// is closed. The manager is told of the end of what the server sends; it may send on.
func (b *bridge) sendDown() {
	from := source{raw: b.socket.conn}
	for {
		f, n, err := from.next(wire.MaxRelayFrame)
		if err != nil {
			// A server that has gone without reading all that was sent resets the connection, after what it
			// had to say.
			if !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
				return
			}
			break
		}
		err = b.send(f, wire.FrameData, n)
		frames.Put(f)
		if err != nil {
			return
		}
	}
	if b.write(wire.AppendFrame(nil, wire.FrameEnd, nil)) == nil {
		waitHangup(b.conn)
	}
}
