package connector

import (
	"context"
	"fmt"
	"sync"
)

// Route is a way to reach a build's socket, or to start a process.
type Route string

const (
	// Auto takes the best route that works on the VM.
	Auto Route = "auto"
	// Session uses an SSH session: `steps proxy` for a socket.
	Session Route = "session"
	// Streamlocal uses a direct-streamlocal channel, which costs no session.
	Streamlocal Route = "streamlocal"
)

// ParseRoute returns the route named s.
func ParseRoute(s string) (Route, error) {
	switch r := Route(s); r {
	case Auto, Session, Streamlocal:
		return r, nil
	default:
		return "", fmt.Errorf("unknown route %q: use %s, %s or %s", s, Auto, Session, Streamlocal)
	}
}

// Choice says which routes a build took, and why.
type Choice struct {
	Start  Route // of its steps serve
	Bridge Route // to its socket; empty before it was chosen
	Reason string
}

// VM remembers what was found out about one VM, for all its builds. The zero value knows nothing
// yet. It is safe for concurrent use.
type VM struct {
	mu      sync.Mutex // guards the following
	bridge  Route      // Session or Streamlocal; empty while unknown
	reason  string
	probing chan struct{} // not nil while a build finds out; closed when it is through
}

// bridgeRoute returns the bridge route that works on the VM, with the reason. While nobody knows it
// asks one caller to find out: then route is empty and found must be called, with an empty route if
// nothing was learned. The other callers wait for that, bounded by ctx.
func (v *VM) bridgeRoute(ctx context.Context) (route Route, reason string, found func(Route, string), err error) {
	for {
		v.mu.Lock()
		if v.bridge != "" {
			defer v.mu.Unlock()
			return v.bridge, v.reason, nil, nil
		}
		if v.probing == nil {
			defer v.mu.Unlock()
			v.probing = make(chan struct{})
			return "", "", v.found, nil
		}
		probing := v.probing
		v.mu.Unlock()
		select {
		case <-probing:
		case <-ctx.Done():
			return "", "", nil, ctx.Err()
		}
	}
}

// found ends a probe.
func (v *VM) found(route Route, reason string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.bridge, v.reason = route, reason
	close(v.probing)
	v.probing = nil
}

// correct replaces what was known: a route that worked does no more.
func (v *VM) correct(route Route, reason string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.bridge, v.reason = route, reason
}

// Choice returns the routes builds take on the VM; Bridge is empty while that is unknown.
func (v *VM) Choice() Choice {
	v.mu.Lock()
	defer v.mu.Unlock()
	return Choice{Start: Session, Bridge: v.bridge, Reason: v.reason}
}
