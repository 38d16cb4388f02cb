package docker

import "time"

// SetStartLimit changes startLimit, and returns a function that restores it.
func SetStartLimit(d time.Duration) func() {
	before := startLimit
	startLimit = d
	return func() { startLimit = before }
}

// ThisProcess names this process on the label of what it makes.
func ThisProcess() string { return thisProcess() }

// AnEarlierProcess names one that has ended, and whose number this process has now.
func AnEarlierProcess() string { return thisProcess() + "0" }
