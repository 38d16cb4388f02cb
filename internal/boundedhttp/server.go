// Package boundedhttp is an HTTP server with limits on size, number and time, for metrics, the status page and the
// services of actions. The owner of a [Server] closes it.
package boundedhttp

import (
	"bytes"
	"cmp"
	"context"
	"log"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// MaxBody bounds a request's body. The largest body is a small form.
	MaxBody = 4 << 10
	// maxConns bounds the connections. Further ones are closed.
	maxConns = 500
)

// Server is an HTTP server. It owns a goroutine that accepts connections, and one for each of those.
type Server struct {
	http http.Server
	wg   sync.WaitGroup
	open atomic.Int64 // connections
}

// Serve answers requests on listener until Close. It closes the listener. logger receives what goes wrong; if nil,
// slog.Default does.
func Serve(listener net.Listener, handler http.Handler, logger *slog.Logger) *Server {
	return ServeFiles(listener, http.MaxBytesHandler(handler, MaxBody), logger)
}

// ServeFiles is Serve for a handler that takes files. It bounds the bodies itself, and gives requests that transfer
// files more time by an [http.ResponseController].
func ServeFiles(listener net.Listener, handler http.Handler, logger *slog.Logger) *Server {
	s := &Server{}
	s.http = http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       30 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ConnState:         s.count,
		ErrorLog:          log.New(errorLog{cmp.Or(logger, slog.Default())}, "", 0),
	}
	s.wg.Go(func() { _ = s.http.Serve(&limited{listener, s}) }) // until Close
	return s
}

// errorLog passes the messages of net/http on. Most are about clients, such as a failed TLS handshake: anybody can
// cause any number of those.
type errorLog struct{ to *slog.Logger }

// Write implements io.Writer.
func (l errorLog) Write(text []byte) (int, error) {
	level := slog.LevelDebug
	if bytes.HasPrefix(text, []byte("http: panic")) || bytes.HasPrefix(text, []byte("http: Accept error")) {
		level = slog.LevelError
	}
	l.to.Log(context.Background(), level, "HTTP server", "error", string(bytes.TrimSpace(text)))
	return len(text), nil
}

// limited is a listener that closes connections over maxConns.
type limited struct {
	net.Listener
	server *Server
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil || l.server.open.Load() < maxConns {
			return conn, err
		}
		_ = conn.Close() // it was not used
	}
}

// count counts the goroutines of connections.
func (s *Server) count(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.wg.Add(1)
		s.open.Add(1)
	case http.StateClosed, http.StateHijacked:
		s.open.Add(-1)
		s.wg.Done()
	case http.StateActive, http.StateIdle: // the connection is still open
	}
}

// Close ends all connections. It is idempotent and waits for the server's goroutines.
func (s *Server) Close() {
	_ = s.http.Close() // an error means that the listener is closed
	s.wg.Wait()
}
