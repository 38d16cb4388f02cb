package sshtest_test

import (
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/faultconn"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// echo starts a TCP server that sends back every byte.
func echo(t *testing.T) string {
	t.Helper()
	return sshtest.Listen(t, "tcp", "127.0.0.1:0", func(nc net.Conn) { _, _ = io.Copy(nc, nc) })
}

func dialProxy(t *testing.T, p *sshtest.TCPProxy) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = nc.Close() })
	return nc
}

// requireEcho checks that bytes get through both ways.
func requireEcho(t *testing.T, nc net.Conn) {
	t.Helper()
	_, err := nc.Write([]byte("ping"))
	require.NoError(t, err)
	got := make([]byte, 4)
	_, err = io.ReadFull(nc, got)
	require.NoError(t, err)
	require.Equal(t, "ping", string(got))
}

func TestProxyForwardsAndCounts(t *testing.T) {
	p := sshtest.Proxy(t, echo(t))
	a, b := dialProxy(t, p), dialProxy(t, p)
	requireEcho(t, a)
	requireEcho(t, b)
	require.Equal(t, 2, p.Conns())
	require.Equal(t, 2, p.TotalConns())
	require.NoError(t, a.Close())
	require.Eventually(t, func() bool { return p.Conns() == 1 }, sshtest.Bound, time.Millisecond)
	requireEcho(t, b)
	require.Equal(t, 2, p.TotalConns())
}

func TestProxyCutBreaksOnlyOpenConnections(t *testing.T) {
	p := sshtest.Proxy(t, echo(t))
	nc := dialProxy(t, p)
	requireEcho(t, nc)
	p.Cut()
	_, err := nc.Read(make([]byte, 1))
	require.Error(t, err)
	requireEcho(t, dialProxy(t, p))
}

func TestProxyStallFreezesOldAndNewConnections(t *testing.T) {
	p := sshtest.Proxy(t, echo(t))
	before := dialProxy(t, p)
	requireEcho(t, before)
	p.Stall()
	after := dialProxy(t, p)
	for _, nc := range []net.Conn{before, after} {
		_, err := nc.Write([]byte("held"))
		require.NoError(t, err)
		require.NoError(t, nc.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
		_, err = nc.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded, "open, and silent")
		require.NoError(t, nc.SetReadDeadline(time.Time{}))
	}
	p.Resume()
	for _, nc := range []net.Conn{before, after} {
		got := make([]byte, 4)
		_, err := io.ReadFull(nc, got)
		require.NoError(t, err)
		require.Equal(t, "held", string(got))
	}
}

func TestStalledProxyCanBeCut(t *testing.T) {
	p := sshtest.Proxy(t, echo(t))
	nc := dialProxy(t, p)
	requireEcho(t, nc)
	p.Stall()
	p.Cut()
	_, err := nc.Read(make([]byte, 1))
	require.Error(t, err)
}

func TestProxyOverALinkDelays(t *testing.T) {
	const delay = 20 * time.Millisecond
	p := sshtest.ProxyOver(t, echo(t), faultconn.Config{Delay: delay})
	nc := dialProxy(t, p)
	start := time.Now()
	requireEcho(t, nc)
	require.GreaterOrEqual(t, time.Since(start), 2*delay)
}

func TestProxyCutsALoginAtAnyByte(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	for _, n := range []int64{1, 20, 500} {
		p := sshtest.ProxyOver(t, s.Addr, faultconn.Config{CutAfterRead: n})
		nc := dialProxy(t, p)
		_, err := nc.Write(make([]byte, 1000))
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, nc) // ends
	}
}

func TestProxyOfNoServerHangsUp(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	s.Stop()
	nc := dialProxy(t, sshtest.Proxy(t, s.Addr))
	_, err := nc.Read(make([]byte, 1))
	require.Error(t, err)
}

func TestEndIsSeenAsAnEndByBothSides(t *testing.T) {
	p := sshtest.Proxy(t, echo(t))
	nc := dialProxy(t, p)
	requireEcho(t, nc)
	p.End()
	require.NoError(t, nc.SetReadDeadline(time.Now().Add(sshtest.Bound)))
	_, err := nc.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.Eventually(t, func() bool { return p.Conns() == 0 }, sshtest.Bound, time.Millisecond)
	requireEcho(t, dialProxy(t, p))
}
