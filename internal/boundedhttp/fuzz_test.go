package boundedhttp_test

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/boundedhttp"
)

// FuzzRequests says anything to a server: no handler sees a large body, the connection ends, and so does the server.
func FuzzRequests(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
	f.Add([]byte("POST /v1/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfff\r\n"))
	f.Add([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	f.Add([]byte("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\nUpgrade: h2c\r\n\r\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		s := boundedhttp.Serve(listener, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			n, _ := io.Copy(io.Discard, r.Body)
			if n > 4<<10 {
				t.Errorf("a handler was given %d bytes", n)
			}
		}), slog.New(slog.DiscardHandler))
		conn, err := net.Dial("tcp", listener.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.Write(said)
		if err == nil {
			_ = conn.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, conn) // until the server has closed
		}
		s.Close()
	})
}
