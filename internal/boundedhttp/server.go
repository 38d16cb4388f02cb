// Package boundedhttp is an HTTP server with limits on size and time, for metrics and the control socket. The owner of
// a [Server] closes it.
package boundedhttp

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// maxBody bounds a request's body, which no handler reads.
const maxBody = 1 << 10

// Server is an HTTP server. It owns a goroutine that accepts connections, and one for each of those.
type Server struct {
	http http.Server
	wg   sync.WaitGroup
}

// Serve answers requests on listener, which it closes, until Close.
func Serve(listener net.Listener, handler http.Handler) *Server {
	s := &Server{}
	s.http = http.Server{
		Handler:           http.MaxBytesHandler(handler, maxBody),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       30 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ConnState:         s.count,
	}
	s.wg.Go(func() { _ = s.http.Serve(listener) }) // until Close
	return s
}

// count counts the goroutines of connections.
func (s *Server) count(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.wg.Add(1)
	case http.StateClosed, http.StateHijacked:
		s.wg.Done()
	case http.StateActive, http.StateIdle: // still open
	}
}

// Close ends all connections. It is idempotent and waits for the server's goroutines.
func (s *Server) Close() {
	_ = s.http.Close() // an error means that the listener is closed
	s.wg.Wait()
}
