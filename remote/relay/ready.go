package relay

import (
	"context"
	"sync"

	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/wire"
)

// readySockets has the sockets on which processes of the relay are expected to listen, and the connects that wait for
// them. A connect may arrive before the start of its process, because both requests are sent at once.
type readySockets struct {
	mu    sync.Mutex // guards the following
	paths map[string]*readySocket
}

// readySocket is a socket that a connect waits for, or on which a process is expected to listen.
type readySocket struct {
	path    string
	waiters int  // guarded by readySockets.mu
	owned   bool // guarded by readySockets.mu too: a process has announced it

	done chan struct{} // closed once told or err is set
	told string        // the path from the process's ready marker
	err  error         // why no process will listen
}

func newReadySockets() *readySockets {
	return &readySockets{paths: make(map[string]*readySocket)}
}

// own announces a process that will listen on path. It returns nil if another process has announced path before.
func (r *readySockets) own(path string) *readySocket {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.getLocked(path)
	if s.owned {
		return nil
	}
	s.owned = true
	return s
}

func (r *readySockets) getLocked(path string) *readySocket {
	s := r.paths[path]
	if s == nil {
		s = &readySocket{path: path, done: make(chan struct{})}
		r.paths[path] = s
	}
	return s
}

// listens records told, the path from the process's ready marker.
func (r *readySockets) listens(s *readySocket, told string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if pause.Done(s.done) {
		return // too late
	}
	if s.told = told; !wire.SameBuildSocket(s.path, told) {
		s.err = wire.RefuseRelay(wire.RelayNotReady, "the process listens on %.160q, not on %s", told, s.path)
	}
	close(s.done)
}

// disown records that the process will not listen any more, and why. It is idempotent, and does nothing if s is nil.
func (r *readySockets) disown(s *readySocket, why string) {
	if s == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.paths[s.path] == s {
		delete(r.paths, s.path)
	}
	if !pause.Done(s.done) {
		s.err = wire.RefuseRelay(wire.RelayNotReady, "the process for %s does not listen: %s", s.path, why)
		close(s.done)
	}
}

// await waits until a process listens on path, and returns the path from its ready marker. The error is a refusal if
// the process has ended or the relay is closing, and otherwise the cause of ctx.
func (r *readySockets) await(ctx context.Context, path string, closing <-chan struct{}) (string, error) {
	r.mu.Lock()
	s := r.getLocked(path)
	s.waiters++
	r.mu.Unlock()
	defer r.leave(s)
	select {
	case <-s.done:
		return s.told, s.err
	case <-closing:
		return "", errClosing
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// leave undoes await.
func (r *readySockets) leave(s *readySocket) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.waiters--
	if s.waiters == 0 && !s.owned && r.paths[s.path] == s {
		delete(r.paths, s.path)
	}
}
