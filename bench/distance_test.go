package bench

import (
	"slices"
	"testing"
	"time"
)

// BenchmarkDistance measures over a distance the start of a process, the opening of a bridge and the start of a build,
// counted in round trips, and one bridge's throughput, where it is a matter of windows.
func BenchmarkDistance(b *testing.B) {
	for _, kind := range []struct {
		name string
		rtts []int // in milliseconds
		run  func(b *testing.B, rtt time.Duration)
	}{
		{"first-byte", []int{0, 50, 100}, func(b *testing.B, rtt time.Duration) {
			measureDistance(b, rtt, at(b, 1, starts(b, newVM(b).at(b, rtt))))
		}},
		{"bridge", []int{0, 50, 100}, func(b *testing.B, rtt time.Duration) {
			v := newVM(b)
			measureDistance(b, rtt, opens(remote(v.at(b, rtt).allWays(b)), newFar(b, v)))
		}},
		{"first-answer", []int{0, 20, 100}, func(b *testing.B, rtt time.Duration) {
			measureDistance(b, rtt, at(b, 1, newVM(b).at(b, rtt).warm(b)))
		}},
		{"throughput", []int{0, 50}, measureFarThroughput},
	} {
		b.Run(kind.name, func(b *testing.B) {
			for _, ms := range sizes(kind.rtts, kind.rtts[1]) {
				rtt := time.Duration(ms) * time.Millisecond
				b.Run("rtt="+rtt.String(), func(b *testing.B) { kind.run(b, rtt) })
			}
		})
	}
}

// measureDistance reports latencies, also as a number of round trips. They hardly differ from one turn to the next.
func measureDistance(b *testing.B, rtt time.Duration, all []candidate) {
	b.Helper()
	for i := range all {
		all[i].every = min(all[i].every, 4)
	}
	effort := usual
	if rtt >= 50*time.Millisecond {
		effort = twice
	}
	r := inTurns(b, effort, all)
	r.medians("p50-µs", names(all)...)
	if rtt > 0 {
		r.trips(rtt, names(all)...)
	}
}

func measureFarThroughput(b *testing.B, rtt time.Duration) {
	const amount = 16 << 20
	v := newVM(b)
	f := newFar(b, v)
	var all []candidate
	for _, w := range remote(v.at(b, rtt).allWays(b)) {
		all = append(all, transfer(w.name, 1, directions[0], amount, w.stream(b, f.path)))
	}
	r := inTurns(b, twice, all)
	r.medians("MB/s", names(all)...)
	r.ratios("raw", names(all)...)
}

// remote returns those of ways that lead from elsewhere to the VM.
func remote(ways []way) []way {
	return slices.DeleteFunc(ways, func(w way) bool { return w.name == "unix" })
}
