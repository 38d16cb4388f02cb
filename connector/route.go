package connector

import "fmt"

// Route is a way to reach a build's socket, or to start a process.
type Route string

const (
	// Auto takes the best routes that work on the VM.
	Auto Route = "auto"
	// Session uses SSH sessions: one for serve, one more for `steps proxy` as the bridge.
	Session Route = "session"
	// Streamlocal uses a session for serve and a direct-streamlocal channel, which is none, as the bridge.
	Streamlocal Route = "streamlocal"
	// Relay uses `steps relay` for both: one session for all builds of the VM.
	Relay Route = "relay"
)

// ParseRoute returns the route named s.
func ParseRoute(s string) (Route, error) {
	switch r := Route(s); r {
	case Auto, Session, Streamlocal, Relay:
		return r, nil
	default:
		return "", fmt.Errorf("unknown route %q: use %s, %s, %s or %s", s, Auto, Session, Streamlocal, Relay)
	}
}

// Choice says which routes a build took, and why.
type Choice struct {
	Start        Route // of its steps serve: Session or Relay; empty before it was chosen
	StartReason  string
	Bridge       Route // to its socket: Session, Streamlocal or Relay; empty before it was chosen
	BridgeReason string
}

// forced is the reason of a route that the configuration names.
const forced = "forced"
