package bench

import (
	"math"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestGrowthIsFittedToItsExponent(t *testing.T) {
	for _, exponent := range []float64{0.5, 1, 2} {
		g := make(growth)
		for _, n := range []int{1, 8, 32, 128, 512} {
			g[n] = 3 * math.Pow(float64(n), exponent)
		}
		require.InDelta(t, exponent, g.fit(), 1e-9)
		// The median of 1, 8, 32 and 128 is 8, where each costs more than linearly if the exponent is.
		reference := map[float64]float64{0.5: 32, 1: 8, 2: 8}[exponent]
		require.InDelta(t, math.Pow(512/reference, exponent-1), g.overLinear(), 1e-9)
	}
}

func TestGrowthIgnoresWhatHasNoLogarithm(t *testing.T) {
	require.InDelta(t, 1, growth{1: -3, 8: 8, 32: 32, 128: 0, 512: 512}.fit(), 1e-9)
}

func TestTheNoiseOfAMedianIsThatOfItsTurns(t *testing.T) {
	var r testing.BenchmarkResult
	measure := func(turns ...float64) {
		r = testing.Benchmark(func(b *testing.B) {
			for b.Loop() {
			}
			newResults(b).report(100, turns, "relay-MB/s")
		})
	}
	measure(90, 100, 100, 110) // the quartiles are 90 and 100
	require.InDelta(t, 100, r.Extra["relay-MB/s"], 0)
	require.InDelta(t, 1.57*10/2/100, r.Extra["relay-MB/s-noise"], 1e-9)
	measure(90, 110) // too few to tell
	require.NotContains(t, r.Extra, "relay-MB/s-noise")
}

func TestRatiosComeWithTheNoiseOfRatiosOfTheSameTurn(t *testing.T) {
	// Both vary together, as on a busy machine: their ratio does not.
	r := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
		}
		r := newResults(b)
		for turn, speed := range []float64{100, 50, 400, 200, 100} {
			r.add("raw", speed)
			r.add("relay", speed/2)
			r.endTurn(turn)
		}
		r.ratio("relay", "raw", "raw")
		r.medians("MB/s", "raw")
	})
	require.InDelta(t, 0.5, r.Extra["relay-x/raw"], 0)
	require.InDelta(t, 0, r.Extra["relay-x/raw-noise"], 0)
	require.Greater(t, r.Extra["raw-MB/s-noise"], 0.3)
}

func TestABenchmarkGoesOnForItsTurnsAndItsTime(t *testing.T) {
	limit, ok := benchtime()
	require.True(t, ok)
	e := effort{times: 2, least: 4}
	require.False(t, e.enough(3, time.Hour))
	require.False(t, e.enough(100, 2*limit-1))
	require.True(t, e.enough(4, 2*limit))
}

func TestTheMemoryOfAProcessIsRead(t *testing.T) {
	own, err := pss(os.Getpid())
	require.NoError(t, err)
	require.Greater(t, own, 1000.0, "KiB")
	none, err := pss(math.MaxInt32)
	require.NoError(t, err)
	require.Zero(t, none)
}

func TestTheHeapIsWatched(t *testing.T) {
	const size = 64 << 20
	w := watchHeap()
	defer w.close()
	before := w.take()
	held := make([]byte, size)
	runtime.GC()
	require.Greater(t, w.take(), before+size/2)
	runtime.KeepAlive(held)
}
