package proc

import (
	"fmt"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"
)

// BenchmarkTrue compares a command of an init with one of this process, from its start to all of it gone.
func BenchmarkTrue(b *testing.B) {
	direct := func() error { return exec.Command("/bin/true").Run() }
	var in Init
	defer in.Close()
	init := func() error {
		p, err := in.Start(b.Context(), Command{Argv: []string{"/bin/true"}, Dir: "/"})
		if err != nil {
			return err
		}
		defer p.Close()
		_, err = p.Wait(b.Context())
		return err
	}
	for _, at := range []int{1, 16} {
		b.Run(fmt.Sprintf("direct/at-once=%d", at), func(b *testing.B) { benchmarkTrue(b, at, direct) })
		b.Run(fmt.Sprintf("init/at-once=%d", at), func(b *testing.B) { benchmarkTrue(b, at, init) })
	}
}

func benchmarkTrue(b *testing.B, at int, run func() error) {
	b.ReportAllocs()
	var mu sync.Mutex
	var took []time.Duration
	for b.Loop() {
		var group sync.WaitGroup
		for range at {
			group.Go(func() {
				begin := time.Now()
				if err := run(); err != nil {
					b.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				took = append(took, time.Since(begin))
			})
		}
		group.Wait()
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
}

func BenchmarkKillOrphans(b *testing.B) {
	for b.Loop() {
		if left := KillOrphans(b.Context()); len(left) > 0 {
			b.Fatal(left)
		}
	}
}
