package bench

import (
	"testing"
	"time"
)

// BenchmarkSpawnLatency measures how long it takes until something that is started shows a sign of life: a process
// its first byte, a build its step runner's first answer, on a VM that is known (warm) and on one that is not
// (cold), a bridge its first answer, and a step runner by itself its readiness.
func BenchmarkSpawnLatency(b *testing.B) {
	b.Run("first-byte", func(b *testing.B) { atCapacities(b, benchmarkFirstByte) })
	b.Run("first-answer/vm=warm", func(b *testing.B) { atCapacities(b, benchmarkWarm) })
	b.Run("first-answer/vm=cold", benchmarkCold)
	b.Run("bridge", benchmarkBridgeOpen)
	b.Run("serve", benchmarkServeStart)
}

// atCapacities runs a benchmark for each of capacities.
func atCapacities(b *testing.B, benchmark func(b *testing.B, n int)) {
	b.Helper()
	for _, n := range capacities() {
		b.Run(capacityName(n), func(b *testing.B) { benchmark(b, n) })
	}
}

// benchmarkBridgeOpen measures the opening of a bridge, to the first answer that comes over it.
func benchmarkBridgeOpen(b *testing.B) {
	v := newVM(b)
	all := opens(v.allWays(b), newFar(b, v))
	r := inTurns(b, tails, all)
	r.latencies("µs", names(all)...)
	r.ratios("raw", names(all)...)
}

// opens returns candidates that open bridges to f.
func opens(ways []way, f *far) []candidate {
	var all []candidate
	for _, w := range ways {
		all = append(all, candidate{name: w.name, every: w.every, run: func(r *results) error { return r.open(w, f.path) }})
	}
	return all
}

// open measures the opening of a bridge, in microseconds.
func (r *results) open(w way, path string) error {
	begin := time.Now()
	s, err := w.open(path)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := ping(s); err != nil {
		return err
	}
	r.add(w.name, micros(time.Since(begin)))
	return nil
}
