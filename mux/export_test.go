package mux

import "time"

// HasExited reports whether the server has told how the process ended, which it does before the rest of
// its output.
func (p *Process) HasExited() bool { return p.impl.(*sessionProcess).bye.Load() }

// SetRelayStartTime changes what bounds the start of a relay, until the test ends.
func SetRelayStartTime(t interface{ Cleanup(func()) }, d time.Duration) {
	old := relayStartTimeout
	relayStartTimeout = d
	t.Cleanup(func() { relayStartTimeout = old })
}
