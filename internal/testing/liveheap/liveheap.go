// Package liveheap measures memory for tests.
package liveheap

import (
	"runtime"
	"runtime/metrics"
)

// Bytes runs a garbage collection and returns how many bytes of the heap it found in use. Bytes that other goroutines
// allocate after the collection do not count, even if the caller continues late.
func Bytes() int64 {
	runtime.GC()
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}
