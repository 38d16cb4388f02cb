// Package liveheap measures memory for tests.
package liveheap

import (
	"runtime"
	"runtime/metrics"
)

// Bytes returns how many bytes of the heap the last collection of garbage, which it runs, found in use. What other
// goroutines allocate since does not count, however late the caller's runs.
func Bytes() int64 {
	runtime.GC()
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}
