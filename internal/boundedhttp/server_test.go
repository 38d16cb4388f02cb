package boundedhttp_test

import (
	"bytes"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stepmux/stepmux/internal/boundedhttp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

//stepmux:faults vulnerabilities | The same on the pages of metrics and of the operator | they do not offer HTTP/2;
//stepmux:more requests are bounded in size and time
func TestCloseLeavesNoGoroutineAfterAnyRequest(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := boundedhttp.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		}
	}), slog.New(slog.DiscardHandler))
	for request, want := range map[string]string{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n": " 200 ",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n" + strings.Repeat("x", 8<<10): " 413 ",
		"GET / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("y", 64<<10) + "\r\n\r\n":             " 431 ",
		// Answered as HTTP/1.1: the server does not speak HTTP/2.
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": " 200 ",
		"GET / HT":                         "",
	} {
		conn, err := net.Dial("tcp", listener.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
		go func() { _, _ = io.WriteString(conn, request) }()
		if want == "" {
			continue // it never finishes
		}
		answer := make([]byte, 16)
		_, err = io.ReadFull(conn, answer)
		require.NoError(t, err)
		require.Contains(t, string(answer), want)
	}
	s.Close()
	s.Close()
	_, err = net.Dial("tcp", listener.Addr().String())
	require.Error(t, err)
}

// The messages of net/http went to standard error as they are, whatever the level of the log. Any client could cause
// any number of them.
func TestWhatClientsDoWrongIsNoErrorInTheLog(t *testing.T) {
	listen := func() net.Listener {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		return listener
	}
	for _, c := range []struct {
		listener     net.Listener
		request      string
		level, error string
	}{
		{tls.NewListener(listen(), &tls.Config{MinVersion: tls.VersionTLS13}), "GET /", "DEBUG", "http: TLS handshake error"},
		{listen(), "GET /bug", "ERROR", "http: panic serving"},
	} {
		var said bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug}))
		s := boundedhttp.Serve(c.listener, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/bug" {
				panic("BUG: of the test")
			}
		}), logger)
		conn, err := net.Dial("tcp", c.listener.Addr().String())
		require.NoError(t, err)
		_, err = io.WriteString(conn, c.request+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, conn) // until the server has closed
		require.NoError(t, conn.Close())
		s.Close()
		require.Contains(t, said.String(), "level="+c.level)
		require.Contains(t, said.String(), c.error)
	}
}
