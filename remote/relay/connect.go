package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/pipe"
	"github.com/stepmux/stepmux/remote/socketdir"
)

// errHungUp is the cause of a context that ended because the manager closed the stream.
var errHungUp = errors.New("the manager has closed the stream")

// leastMoved is how many bytes must wait in a socket to be moved to the manager without a copy. Fewer are copied,
// because that takes fewer system calls.
const leastMoved = 16 << 10

// connect serves a connect request: it joins s and a socket.
func (s *stream) connect(request *wire.RelayConnect) {
	ctx, cancel := context.WithCancelCause(s.relay.life)
	b := &bridge{stream: s, connected: make(chan struct{})}
	var up sync.WaitGroup
	up.Go(func() { cancel(b.sendUp(ctx)) })
	defer up.Wait()
	defer s.wake()
	defer cancel(nil)
	var err error
	if b.conn, err = s.reach(ctx, request); err == nil {
		defer func() { _ = b.conn.Close() }()
		b.socket, err = pipe.NewRaw(b.conn, request.Path)
	}
	if err != nil {
		s.answer(err)
		return
	}
	s.giveUp = ctx.Done()
	stop := context.AfterFunc(ctx, func() { _ = b.conn.Close() }) // with giveUp it wakes both directions
	defer stop()
	s.answer(nil)
	close(b.connected)
	b.sendDown()
}

// reach connects to the socket of the request. If the request asks for that, it first waits until a process listens
// there, and connects to the path that the process reported.
func (s *stream) reach(ctx context.Context, request *wire.RelayConnect) (*net.UnixConn, error) {
	path, tempDir := request.Path, s.relay.tempDir
	err := socketdir.CheckBuild(tempDir, path)
	if err == nil && request.Wait > 0 {
		wait, cancel := context.WithTimeoutCause(ctx, request.Wait,
			wire.RefuseRelay(wire.RelayNotReady, "no process listened on %s within %v", path, request.Wait))
		defer cancel()
		if path, err = s.relay.sockets.await(wait, path, s.relay.closing); err == nil {
			err = socketdir.CheckBuild(tempDir, path)
		}
	}
	if err != nil {
		return nil, err
	}
	return socketdir.ConnectBuild(ctx, path)
}

// bridge joins a stream and a socket.
type bridge struct {
	*stream
	connected chan struct{} // closed once conn and socket are set
	conn      *net.UnixConn
	socket    pipe.Raw // of conn
}

// sendUp carries the manager's frames to the socket, once it is connected. It returns when the manager closes the
// stream or breaks the protocol, or when ctx ends.
func (b *bridge) sendUp(ctx context.Context) error {
	if _, err := b.in.Peek(1); err != nil {
		return errHungUp // the request may still wait for the socket
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
			_ = b.conn.CloseWrite() // fails if the server has gone; sendDown notices that
		default:
			err = fmt.Errorf("%w: a frame %q of %d bytes to a socket", wire.ErrRelayProtocol, kind, n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copyUp carries a payload of n bytes to the socket. A failed write is no error: a server that has stopped reading may
// still send.
func (b *bridge) copyUp(n int) error {
	f := getFrame()
	defer frames.Put(f)
	if _, err := io.ReadFull(b.in, f[:n]); err != nil {
		return errHungUp
	}
	_, _ = b.socket.Write(f[:n])
	return nil
}

// sendDown carries the server's bytes to the manager. It returns once the server has closed the connection or the
// bridge is closed. If the server only ends its sending half, sendDown tells the manager, which may send on.
func (b *bridge) sendDown() {
	raw, err := b.conn.SyscallConn()
	if err != nil {
		return // closed
	}
	for moved := false; ; {
		var n int
		if moved {
			n, err = b.moveDown(raw)
		} else {
			n, err = b.copyDown(raw)
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET):
			// A server that exits before it has read everything resets the connection, after its last bytes.
			if b.write(wire.AppendFrame(nil, wire.FrameEnd, nil)) == nil {
				pipe.WaitHangup(b.conn)
			}
			return
		case err != nil:
			return
		}
		moved = n >= leastMoved && b.relay.link.moves.Load()
	}
}

// copyDown waits for bytes of the server, sends them, and returns their number. The errors io.EOF and unix.ECONNRESET
// are the server's end.
func (b *bridge) copyDown(from syscall.RawConn) (int, error) {
	f, n, err := readFrame(from.Read, wire.MaxRelayFrame)
	if err != nil {
		return 0, err
	}
	defer frames.Put(f)
	if b.send(f, wire.FrameData, n) != nil {
		return 0, errHungUp
	}
	return n, nil
}

// moveDown sends a frame of the bytes that wait in the socket, if there are many of them, and returns their number. It
// moves them without a copy in this program. It keeps the socket open until the frame is whole.
func (b *bridge) moveDown(from syscall.RawConn) (n int, err error) {
	closed := from.Control(func(fd uintptr) {
		waiting := pipe.Waiting(fd)
		if waiting < leastMoved {
			return
		}
		var room int
		if room, err = b.raw.Await(wire.RelayFrameHeader+leastMoved, b.giveUp); err != nil {
			return
		}
		n = min(waiting, room-wire.RelayFrameHeader, wire.MaxRelayFrame)
		err = b.raw.SendBy(wire.RelayFrameHeader+n, func(before []byte) error {
			var head [wire.RelayFrameHeader]byte
			wire.PutFrameHeader(head[:], wire.FrameData, n)
			return b.relay.link.move(append(before, head[:]...), fd, n)
		})
	})
	if closed != nil || err != nil {
		return 0, errHungUp
	}
	return n, nil
}
