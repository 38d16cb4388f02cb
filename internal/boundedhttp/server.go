// Package boundedhttp serves small requests over HTTP, bounded in size and time.
package boundedhttp

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// maxBody bounds a request's body, of which none has a use.
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
	s.wg.Go(func() { _ = s.http.Serve(listener) }) // it ends with Close
	return s
}

// count keeps count of the connections' goroutines.
func (s *Server) count(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.wg.Add(1)
	case http.StateClosed, http.StateHijacked:
		s.wg.Done()
	case http.StateActive, http.StateIdle: // it goes on
	}
}

// Close ends all connections. It is idempotent and waits for the server's goroutines.
func (s *Server) Close() {
	_ = s.http.Close() // an error means that the listener was closed already
	s.wg.Wait()
}
