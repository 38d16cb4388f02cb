package actionservices

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"

	"github.com/stepmux/stepmux/internal/boundedhttp"
)

// Door serves connections to a [Server] that others have accepted: those of one job, so that it cannot take the
// connections of others. The owner calls Close.
type Door struct {
	server *Server
	logger *slog.Logger
	conns  chan net.Conn
	life   context.Context // of requests: a client that goes away may ask again for what it has begun
	end    context.CancelFunc
	relay  *relay // nil: there is no server behind

	mu   sync.Mutex          // guards the following
	http *boundedhttp.Server // nil before the first connection
	over bool
}

// Door returns a new Door. It costs nothing before the first connection. logger may be nil; see [boundedhttp.Serve].
func (s *Server) Door(logger *slog.Logger) *Door {
	d := &Door{server: s, logger: logger, conns: make(chan net.Conn)}
	d.life, d.end = context.WithCancel(context.Background())
	return d
}

// PassOn lets the job reach a Gitea server through this machine, which reaches it by another URL. The server then has
// the artifacts, and this one the caches alone. Paths of the server, below that of its URL, are those of the door, and
// the door is a proxy of HTTP for the server alone. Call it before Take.
func (d *Door) PassOn(server, by string) (err error) {
	d.relay, err = newRelay(server, by)
	return err
}

// ServeHTTP answers a request.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if d.relay != nil && d.relay.takes(r) {
		d.relay.serve(d.life, w, r) //nolint:contextcheck // tunnels end with the door
		return
	}
	d.server.ServeHTTP(w, r.WithContext(d.life)) //nolint:contextcheck // see Door.life
}

// Take serves a connection, or closes it after Close.
func (d *Door) Take(conn net.Conn) {
	d.mu.Lock()
	if d.http == nil && !d.over {
		d.http = boundedhttp.ServeFiles(acceptor{d}, d, d.logger)
	}
	d.mu.Unlock()
	select {
	case d.conns <- conn:
	case <-d.life.Done():
		conn.Close()
	}
}

// Close ends all connections, and waits for their goroutines. It is idempotent.
func (d *Door) Close() {
	d.mu.Lock()
	d.over = true
	serves := d.http
	d.mu.Unlock()
	d.end()
	if serves != nil {
		serves.Close()
	}
	if d.relay != nil {
		d.relay.close()
	}
}

// acceptor is the listener of a Door.
type acceptor struct{ *Door }

// Accept implements net.Listener, as do the following.
func (a acceptor) Accept() (net.Conn, error) {
	select {
	case conn := <-a.conns:
		return conn, nil
	case <-a.life.Done():
		return nil, net.ErrClosed
	}
}

// Close leaves the end to the Door.
func (a acceptor) Close() error { return nil }

// Addr returns no address: each job has one of its own.
func (a acceptor) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }
