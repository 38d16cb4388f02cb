package connector

import (
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/hooks"
)

// Trace is a set of hooks. Each may be nil. They are called synchronously, with no lock held, from many
// goroutines at once. They must return soon, and must not call the Connector.
//
// For one build the order is ServeReady, BridgeOpen and BridgeClose for each bridge, ServeStop, ServeGone.
type Trace struct {
	// ServeReady is called when the build's serve, started by this route, listens. took is the time since the request
	// to start it.
	ServeReady func(build string, start Route, took time.Duration)
	// BridgeOpen is called when a bridge has been opened by this route, BridgeClose when it has been closed.
	BridgeOpen  func(build string, route Route)
	BridgeClose func(build string)
	// LinkBack is called when the link of a lingering build works again. away is how long it was lost.
	LinkBack func(build string, away time.Duration)
	// ServeStop is called before serve, if it still lives, is told to end. No bridge is open then.
	ServeStop func(build string)
	// ServeGone is called after ServeStop when serve is gone or, with an error, when the wait for its end is given
	// up.
	ServeGone func(build string, took time.Duration, err error)
}

// noTrace returns hooks that do nothing. They are made once, as reflection makes them.
var noTrace = sync.OnceValue(func() *Trace {
	all := new(Trace)
	hooks.Fill(all)
	return all
})
