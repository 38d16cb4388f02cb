// Package gcpace makes a program collect garbage less often while its heap is small.
//
// Go collects garbage when the heap has doubled, so a program with 4 MiB of live memory collects after each 4 MiB that
// it allocates. golang.org/x/crypto/ssh allocates each packet that it reads, of up to 32 KiB. So a download makes such
// a program collect every 128 packets, which is more than half of its processor time.
package gcpace

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	garbage = 16 << 20 // bytes that a program may always allocate between two collections
	fewest  = 100      // Go's own pace, in percent of the live heap; it holds once 16 MiB are live
	most    = 400      // the first collection is at 16 MiB then: Go's least heap is 4 MiB at 100
)

// Set sets the pace for the rest of the program's life, and adjusts it after each collection. The program's heap may
// grow by 16 MiB more than it would at Go's own pace, which holds once 16 MiB are live. Set does nothing if the
// environment variable GOGC sets a pace.
func Set() {
	if os.Getenv("GOGC") == "" {
		adjust(fewest)
	}
}

// adjust sets the pace for the heap that was live in the last collection, unless that is the current pace. The runtime
// calls it again, on a goroutine of its own, after the next collection: that one frees the object of the cleanup.
func adjust(current int) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	percent := percentFor(live[0].Value.Uint64())
	if percent != current {
		debug.SetGCPercent(percent)
	}
	runtime.AddCleanup(new(*byte), adjust, percent)
}

// percentFor returns the pace for a heap with this many live bytes, as debug.SetGCPercent takes it.
func percentFor(live uint64) int {
	return int(min(most, max(fewest, 100*garbage/max(live, 1))))
}
