package service

import (
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// followersTimeout bounds the wait, after the last job, for callers to take the final states.
const followersTimeout = time.Second

// Listener keeps a list of its open connections, so that [Stop] can close them.
type Listener struct {
	net.Listener

	mu     sync.Mutex // guards the following
	conns  map[*trackedConn]struct{}
	forced bool
}

// Track returns a Listener that accepts the connections of ln. It owns ln.
func Track(ln net.Listener) *Listener {
	return &Listener{Listener: ln, conns: make(map[*trackedConn]struct{})}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &trackedConn{conn, l}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = struct{}{}
	return c, nil
}

// Forced reports whether [Stop] has closed connections whose callers did not let go of them.
func (l *Listener) Forced() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.forced
}

func (l *Listener) closeConns() {
	l.mu.Lock()
	l.forced = true
	conns := make([]*trackedConn, 0, len(l.conns))
	for c := range l.conns {
		conns = append(conns, c)
	}
	l.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

// trackedConn removes itself from its listener's list when it is closed.
type trackedConn struct {
	net.Conn
	listener *Listener
}

// Close implements net.Conn.
func (c *trackedConn) Close() error {
	c.listener.mu.Lock()
	delete(c.listener.conns, c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

// Stop stops a server. It refuses new calls, and calls stopJobs while the calls under way go on. When stopJobs has
// returned, it gives callers a second to take the final states, and closes every connection. ln is the server's
// listener, nil if it does not serve yet. Stop returns the error of stopJobs.
func Stop(server *grpc.Server, ln *Listener, stopJobs func() error) error {
	drained := make(chan struct{})
	go func() { // waited for below
		defer close(drained)
		server.GracefulStop() // returns when the calls under way have ended
	}()
	err := stopJobs()
	timer := time.NewTimer(followersTimeout)
	defer timer.Stop()
	select {
	case <-drained:
	case <-timer.C:
		// GracefulStop and Stop both wait for connections on which no client has spoken yet. So they are closed first.
		if ln != nil {
			ln.closeConns()
		}
		server.Stop()
		<-drained
	}
	return err
}
