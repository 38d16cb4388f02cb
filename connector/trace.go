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
	// ServeStop is called when serve, if it still lives, is about to be told to end. No bridge is open.
	ServeStop func(build string)
	// ServeGone is called when serve is seen gone after ServeStop, or, with an error, given up.
	ServeGone func(build string, took time.Duration, err error)
}

// orNothing returns a copy of t in which no hook is nil.
func (t *Trace) orNothing() *Trace {
	var all Trace
	if t != nil {
		all = *t
	}
	if all.ServeReady == nil {
		all.ServeReady = func(string, Route, time.Duration) {}
	}
	if all.BridgeOpen == nil {
		all.BridgeOpen = func(string, Route) {}
	}
	if all.BridgeClose == nil {
		all.BridgeClose = func(string) {}
	}
	if all.ServeStop == nil {
		all.ServeStop = func(string) {}
	}
	if all.ServeGone == nil {
		all.ServeGone = func(string, time.Duration, error) {}
	}
	return &all
}
