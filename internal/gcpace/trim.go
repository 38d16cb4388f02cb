package gcpace

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// trimPause is the pause between two looks of Trim. It doubles up to maxTrimPause while there is nothing to return.
	trimPause, maxTrimPause = 10 * time.Second, 2 * time.Minute
	// trimSlack is memory that is not worth a collection, in bytes.
	trimSlack = 32 << 20
)

// Trim returns the memory of a burst to the system soon after it, until ctx ends. Go alone needs many minutes for that
// in a program that then has little to do: it collects every two minutes, what is in a sync.Pool is garbage only after
// two collections, and the memory is returned little by little.
func Trim(ctx context.Context) { trim(ctx, trimPause) }

func trim(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	_, cycles := heap()
	floor := uint64(0) // held after the last collection here
	for wait := pause; ; timer.Reset(wait) {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		before, now := heap()
		if now != cycles { // Go itself collects while the program has much to do
			wait, cycles, floor = pause, now, 0
			continue
		}
		if before <= floor+trimSlack {
			wait = min(2*wait, maxTrimPause)
		}
		runtime.GC() // what is in a sync.Pool becomes garbage
		debug.FreeOSMemory()
		floor, cycles = heap()
	}
}

// heap returns the size of the heap without the part that was returned to the system, in bytes, and the number of
// collections.
func heap() (held, cycles uint64) {
	all := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/gc/cycles/total:gc-cycles"},
	}
	metrics.Read(all)
	return all[0].Value.Uint64() + all[1].Value.Uint64() + all[2].Value.Uint64(), all[3].Value.Uint64()
}
