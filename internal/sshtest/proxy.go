package sshtest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/faultconn"
)

// TCPProxy is a TCP proxy in front of a server, and the place where its connections go bad. Its
// methods may be called from any goroutine.
type TCPProxy = faultconn.Proxy

// Proxy starts a proxy in front of target, a host:port, that works well until it is told otherwise.
func Proxy(t testing.TB, target string) *TCPProxy {
	t.Helper()
	return ProxyOver(t, target, faultconn.Config{})
}

// ProxyOver starts a proxy in front of target whose clients are at the other end of a link, as faultconn.Listen
// says.
func ProxyOver(t testing.TB, target string, link faultconn.Config) *TCPProxy {
	t.Helper()
	p, err := faultconn.Listen(target, link)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}
