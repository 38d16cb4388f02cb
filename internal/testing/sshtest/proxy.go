package sshtest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/faultconn"
)

// TCPProxy is a TCP proxy in front of a server that can stall, cut and slow down its connections. Its methods may be
// called from any goroutine.
type TCPProxy = faultconn.Proxy

// Proxy starts a proxy without faults in front of target, a host:port.
func Proxy(t testing.TB, target string) *TCPProxy {
	t.Helper()
	return ProxyOver(t, target, faultconn.Config{})
}

// ProxyOver starts a proxy in front of target whose clients are at the other end of a link: see faultconn.Listen.
func ProxyOver(t testing.TB, target string, link faultconn.Config) *TCPProxy {
	t.Helper()
	p, err := faultconn.Listen(target, link)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}
