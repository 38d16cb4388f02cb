package docker

import "time"

// SetStartLimit changes startLimit, and returns a function that restores it.
func SetStartLimit(d time.Duration) func() {
	before := startLimit
	startLimit = d
	return func() { startLimit = before }
}
