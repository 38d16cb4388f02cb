package metrics

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/stepmux/stepmux/internal/boundedhttp"
)

// Server serves Metrics at /metrics, and "ok" at /healthz as long as the process lives.
type Server struct {
	addr string
	http *boundedhttp.Server
}

// Serve listens on addr, [HOST]:PORT, until Close. Without HOST only this machine can connect.
func Serve(addr string, m *Metrics) (*Server, error) {
	if !strings.Contains(addr, ":") {
		addr = ":" + addr
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("serve metrics on %q: want [HOST]:PORT: %w", addr, err)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("serve metrics: %w (name another address, or port 0 for any)", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", m.Handler())
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok\n") // a client that hangs up does not need it
	})
	return &Server{addr: listener.Addr().String(), http: boundedhttp.Serve(listener, mux, nil)}, nil
}

// Addr returns the address where it listens, as host:port.
func (s *Server) Addr() string { return s.addr }

// Close ends the connections and waits for them. Idempotent.
func (s *Server) Close() { s.http.Close() }
