package bench

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/stepmux/stepmux/internal/wire"
)

// A far is the destination of bridges: a socket on the VM that serves the requests below. A process of its own serves
// it, so that its cost is not counted as the manager's. It lies where the sockets of builds lie.
//
// A request is one byte for the action and eight for the amount.
type far struct{ path string }

const (
	farDown = 'd' // send so many bytes
	farUp   = 'u' // take so many bytes, then send one
	farEcho = 'e' // send so many bytes back
	farBoth = 'b' // send and take so many bytes at the same time
	farSent = 's' // tell in eight bytes how many were sent to all, whatever the number

	farRequest = 9
	// farMost is a number of bytes that is never reached.
	farMost = 1 << 62

	// farVar is the variable of the environment that makes this program the process at the other end.
	farVar = "STEPMUX_BENCH_FAR"
)

// newFar starts the other end of bridges to v.
func newFar(b *testing.B, v *vm) *far {
	b.Helper()
	path, err := wire.SocketPath(v.tmp, wire.BuildID(rand.Text()))
	require.NoError(b, err)
	require.NoError(b, os.MkdirAll(filepath.Dir(path), 0o700))
	// As serve does: a directory that nobody holds locked may be swept.
	lock, err := os.Open(filepath.Dir(path))
	require.NoError(b, err)
	b.Cleanup(func() { lock.Close() })
	require.NoError(b, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	self, err := os.Executable()
	require.NoError(b, err)
	cmd := exec.Command(self) // its standard input is its leash
	cmd.Env = append(os.Environ(), farVar+"="+path)
	cmd.Stderr = os.Stderr
	leash, err := cmd.StdinPipe()
	require.NoError(b, err)
	ready, err := cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	b.Cleanup(func() {
		leash.Close()
		require.NoError(b, cmd.Wait())
	})
	_, err = io.ReadFull(ready, make([]byte, 1))
	require.NoError(b, err, "the other end does not listen")
	return &far{path}
}

// sent returns how many bytes were sent to all clients.
func (f *far) sent() (int64, error) {
	conn, err := net.Dial("unix", f.path)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := ask(conn, farSent, 0); err != nil {
		return 0, err
	}
	var n int64
	return n, binary.Read(conn, binary.BigEndian, &n)
}

// farMain is the process at the other end: it serves the socket at path until its standard input ends.
func farMain(path string) error {
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	f := &farServer{conns: make(map[net.Conn]struct{})}
	f.wg.Go(func() { f.accept(listener) })
	if _, err := os.Stdout.WriteString("."); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	listener.Close()
	f.close()
	return err
}

type farServer struct {
	sent atomic.Int64

	wg    sync.WaitGroup
	mu    sync.Mutex // guards the following
	conns map[net.Conn]struct{}
	done  bool
}

func (f *farServer) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		if !f.add(conn) {
			conn.Close()
			return
		}
		f.wg.Go(func() {
			defer f.remove(conn)
			f.serve(conn)
		})
	}
}

func (f *farServer) add(conn net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.done {
		f.conns[conn] = struct{}{}
	}
	return !f.done
}

func (f *farServer) remove(conn net.Conn) {
	conn.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, conn)
}

// close ends all connections and waits for them.
func (f *farServer) close() {
	f.mu.Lock()
	f.done = true
	for conn := range f.conns {
		conn.Close()
	}
	f.mu.Unlock()
	f.wg.Wait()
}

// serve handles requests until the connection ends.
func (f *farServer) serve(conn net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		if _, err := io.ReadFull(conn, buf[:farRequest]); err != nil {
			return
		}
		n := int64(binary.BigEndian.Uint64(buf[1:]))
		var err error
		switch buf[0] {
		case farDown:
			err = send(countingWriter{conn, &f.sent}, n, buf)
		case farUp:
			if err = receive(conn, n, buf); err == nil {
				_, err = conn.Write(buf[:1])
			}
		case farEcho:
			if _, err = io.ReadFull(conn, buf[:n]); err == nil {
				_, err = conn.Write(buf[:n])
			}
		case farBoth:
			var group errgroup.Group
			group.Go(func() error { return send(countingWriter{conn, &f.sent}, n, make([]byte, len(buf))) })
			err = receive(conn, n, buf)
			err = cmp.Or(group.Wait(), err)
		case farSent:
			_, err = conn.Write(binary.BigEndian.AppendUint64(nil, uint64(f.sent.Load())))
		}
		if err != nil {
			return
		}
	}
}

type countingWriter struct {
	io.Writer
	n *atomic.Int64
}

func (w countingWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.n.Add(int64(n))
	return n, err
}

func send(to io.Writer, n int64, buf []byte) error {
	for n > 0 {
		m, err := to.Write(buf[:min(n, int64(len(buf)))])
		if err != nil {
			return err
		}
		n -= int64(m)
	}
	return nil
}

func receive(from io.Reader, n int64, buf []byte) error {
	for n > 0 {
		m, err := from.Read(buf[:min(n, int64(len(buf)))])
		n -= int64(m)
		if err != nil && n > 0 {
			if errors.Is(err, io.EOF) {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// ask sends a request of a far.
func ask(to io.Writer, what byte, n int64) error {
	_, err := to.Write(binary.BigEndian.AppendUint64([]byte{what}, uint64(n)))
	return err
}

// down moves n bytes from the VM.
func down(s io.ReadWriter, n int64) error {
	if err := ask(s, farDown, n); err != nil {
		return err
	}
	return receive(s, n, make([]byte, 256<<10))
}

// up moves n bytes to the VM.
func up(s io.ReadWriter, n int64) error {
	if err := ask(s, farUp, n); err != nil {
		return err
	}
	if err := send(s, n, make([]byte, 64<<10)); err != nil {
		return err
	}
	return receive(s, 1, make([]byte, 1))
}

// both moves n bytes in all, half of them each way at the same time. s has been asked for nothing.
func both(s io.ReadWriter, n int64) error {
	if err := ask(s, farBoth, n/2); err != nil {
		return err
	}
	var group errgroup.Group
	group.Go(func() error { return send(s, n/2, make([]byte, 64<<10)) })
	err := receive(s, n/2, make([]byte, 256<<10))
	return cmp.Or(group.Wait(), err)
}

// ping sends 64 bytes there and back.
func ping(s io.ReadWriter) error {
	const size = 64
	message := make([]byte, farRequest+size)
	message[0] = farEcho
	binary.BigEndian.PutUint64(message[1:], size)
	if _, err := s.Write(message); err != nil {
		return err
	}
	return receive(s, size, message)
}
