package docker

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// SetStartLimit changes startLimit, and returns a function that restores it.
func SetStartLimit(d time.Duration) func() {
	before := startLimit
	startLimit = d
	return func() { startLimit = before }
}

// SetPullStall changes pullStall, and returns a function that restores it.
func SetPullStall(d time.Duration) func() {
	before := pullStall
	pullStall = d
	return func() { pullStall = before }
}

// ThisProcess names this process on the label of what it makes.
func ThisProcess() string { return thisProcess() }

// AnEarlierProcess names one that has ended, and whose number this process has now.
func AnEarlierProcess() string { return thisProcess() + "0" }

// HoldReaping makes the search for containers that were left last until the returned function is called.
func HoldReaping(d *Daemon) (end func()) {
	d.reaped.Forget()
	report := d.reaped.Claim()
	return func() { report(false, reapEvery) }
}

// TakeAllTurns takes all turns of a daemon that nobody uses, and returns a function that gives them back.
func TakeAllTurns(t testing.TB, d *Daemon) (free func()) {
	t.Helper()
	var taken []func()
	for range startsAtOnce {
		give, err := d.turn(t.Context())
		require.NoError(t, err)
		taken = append(taken, give)
	}
	return func() {
		for _, give := range taken {
			give()
		}
	}
}
