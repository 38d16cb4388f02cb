package connector

import "time"

// SetRelayRetry changes the time after which a relay that did not start is tried again, until the test ends.
func SetRelayRetry(t interface{ Cleanup(func()) }, d time.Duration) {
	old := relayRetry
	relayRetry = d
	t.Cleanup(func() { relayRetry = old })
}
