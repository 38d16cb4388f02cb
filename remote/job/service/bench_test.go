package service

import (
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkTrivialJob is the time from Run to the final state of a job that does next to nothing,
// beside the same script as a bare child process.
func BenchmarkTrivialJob(b *testing.B) {
	b.Run("service", func(b *testing.B) {
		h := newHarness(b)
		n := 0
		measure(b, func() {
			n++
			h.run(script(fmt.Sprint(n), "echo hi"))
			require.Equal(b, "hi\n", h.output(fmt.Sprint(n)).stdout())
		})
	})
	b.Run("peer=bash", func(b *testing.B) {
		measure(b, func() {
			out, err := exec.Command("bash", "-c", "echo hi").Output()
			require.NoError(b, err)
			require.Equal(b, "hi\n", string(out))
		})
	})
}

// measure runs op and reports its median and its 99th percentile.
func measure(b *testing.B, op func()) {
	var times []time.Duration
	b.ReportAllocs()
	for b.Loop() {
		began := time.Now()
		op()
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-us")
}
