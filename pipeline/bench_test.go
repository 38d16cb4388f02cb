package pipeline

import (
	"context"
	"runtime"
	"testing"
	"time"
)

// BenchmarkPlan plans the largest graphs, and carries them out without work. live-MiB is the memory that the plan and
// its run keep, without the graph.
func BenchmarkPlan(b *testing.B) {
	for name, g := range map[string]Graph{
		"stages=2/nodes=10000": twoStages(MaxNodes),
		"needs=50/nodes=10000": dense(MaxNodes, MaxNeeds/MaxNodes),
		"chain/nodes=10000":    chain(MaxNodes),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			var p *Plan
			var r *Progress
			for b.Loop() {
				var err error
				if p, err = New(g); err != nil {
					b.Fatal(err)
				}
				r = p.Begin(time.Now())
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.ReportMetric(max(0, float64(after.HeapAlloc)-float64(before.HeapAlloc))/(1<<20), "live-MiB")
			runtime.KeepAlive(r)
			if p.Run(b.Context(), carryFunc(func(context.Context, int, int) Result { return Result{} }),
				Config{Slots: 8}).Count(Succeeded) != MaxNodes {
				b.Fatal("not all nodes ran")
			}
		})
	}
}
