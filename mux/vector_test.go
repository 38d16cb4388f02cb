package mux

import (
	"bytes"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
)

// tcpPair returns two ends of a TCP connection.
func tcpPair(t *testing.T) (near, far *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	nc, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	accepted, err := ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() {
		nc.Close()
		accepted.Close()
	})
	return nc.(*net.TCPConn), accepted.(*net.TCPConn)
}

// noTCP hides that a connection is TCP, as one through a jump host is not.
type noTCP struct{ net.Conn }

func TestNetConnReadsAndWritesTheSameBytesWithAndWithoutVectors(t *testing.T) {
	for name, wrap := range map[string]func(nc net.Conn) net.Conn{
		"TCP":   func(nc net.Conn) net.Conn { return nc },
		"other": func(nc net.Conn) net.Conn { return noTCP{nc} },
	} {
		t.Run(name, func(t *testing.T) {
			near, far := tcpPair(t)
			c := newNetConn(wrap(near))
			c.joinPieces(ssh.CipherAES128GCM)
			want := bytes.Repeat([]byte("0123456789abcdef."), 1<<16) // more than the kernel's buffers at first
			done := make(chan error, 1)
			go func() { // as the other end: echo
				_, err := io.Copy(struct{ io.Writer }{far}, struct{ io.Reader }{far})
				done <- errors.Join(err, far.CloseWrite())
			}()
			go func() {
				for rest := want; len(rest) > 0; { // a piece of the library's buffer, and the rest of a packet
					for _, size := range []int{libraryBuffer, 28_719, 100} {
						n := min(size, len(rest))
						if _, err := c.Write(rest[:n]); err != nil {
							return // the reader notices
						}
						rest = rest[n:]
					}
				}
				_ = near.CloseWrite()
			}()
			got := make([]byte, len(want))
			for rest := got; len(rest) > 0; {
				for _, size := range []int{libraryBuffer, 28_719, 3, 300_000} {
					n, err := c.Read(rest[:min(size, len(rest))])
					require.NoError(t, err)
					if rest = rest[n:]; len(rest) == 0 {
						break
					}
				}
			}
			require.True(t, bytes.Equal(want, got))
			_, err := c.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)
			require.NoError(t, <-done)
			require.NoError(t, c.Close())
			_, err = c.Read(make([]byte, 1))
			require.ErrorIs(t, err, net.ErrClosed)
			_, err = c.Write([]byte("x"))
			require.ErrorIs(t, err, net.ErrClosed)
		})
	}
}

func TestNetConnTellsWhyAConnectionBroke(t *testing.T) {
	near, far := tcpPair(t)
	c := newNetConn(near)
	ops := make(chan string, 1)
	c.notify(func(op string, err error) {
		require.ErrorIs(t, err, syscall.ECONNRESET)
		ops <- op
	})
	_, err := near.Write([]byte("unread"))
	require.NoError(t, err)
	require.NoError(t, far.SetLinger(0))
	require.NoError(t, far.Close()) // a reset
	_, err = c.Read(make([]byte, 1))
	require.ErrorContains(t, err, "connection reset by peer")
	require.Equal(t, "read", <-ops)
}

// A connection was said to be lost by "use of closed network connection" where the library had closed it, for a reason
// that it told a moment later.
func TestNetConnDoesNotReportItsOwnEnd(t *testing.T) {
	near, _ := tcpPair(t)
	c := newNetConn(near)
	c.notify(func(op string, err error) { t.Errorf("reported: %s: %v", op, err) })
	read := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		read <- err
	}()
	require.NoError(t, c.Close())
	require.ErrorIs(t, <-read, net.ErrClosed)
	_, err := c.Write([]byte("x"))
	require.ErrorIs(t, err, net.ErrClosed)
}
