// Package racefree is for tests that compute much in one goroutine, such as those of bounds of 16 MiB: the race
// detector takes ten times as long for them, and can find nothing; and for those that crash it.
package racefree

import "testing"

// Only skips a test under the race detector. .ci/run runs it without that, as root.
func Only(t testing.TB) {
	t.Helper()
	if raced {
		t.Skip("this test runs without the race detector: it computes much in one goroutine, or crashes the detector")
	}
}
