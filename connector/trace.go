package connector

import "time"

// Trace is a set of hooks, each of which may be nil. They are called synchronously and with no lock held,
// from many goroutines at once: they return soon, and do not call the Connector.
//
// For one build the order is ServeReady, BridgeOpen and BridgeClose for each bridge, ServeStop, ServeGone.
type Trace struct {
	// ServeReady is called when the build's serve, started by that route, listens. took counts from the
	// request to start it.
	ServeReady func(build string, start Route, took time.Duration)
	// BridgeOpen is called when a bridge has been opened by that route, BridgeClose when it has been closed.
	BridgeOpen  func(build string, route Route)
	BridgeClose func(build string)
	// LinkBack is called when the link of a build that lingers is back after it was away for so long.
	LinkBack func(build string, away time.Duration)
	// ServeStop is called when serve, if it still lives, is about to be told to end. No bridge is open.
	ServeStop func(build string)
	// ServeGone is called when serve is seen gone after ServeStop, or, with an error, given up.
	ServeGone func(build string, took time.Duration, err error)
}
