package bench

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// BenchmarkEngine measures a step runner without any way to it, beside the same scripts as children of this process.
func BenchmarkEngine(b *testing.B) {
	for _, at := range sizes([]int{1, 16, 64, 500}, 1, 16) {
		b.Run(fmt.Sprintf("job/at-once=%d", at), func(b *testing.B) { benchmarkJobs(b, at) })
	}
	b.Run("jobs-in-a-row", benchmarkJobsInARow)
	for _, n := range sizes([]int{1000, 20_000}, 1000) {
		b.Run(fmt.Sprintf("lines=%d", n), func(b *testing.B) { benchmarkLines(b, n) })
	}
	for _, n := range sizes([]int{1000}, 10) {
		b.Run(fmt.Sprintf("steps=%d", n), func(b *testing.B) { benchmarkSteps(b, n) })
		b.Run(fmt.Sprintf("compile/steps=%d", n), func(b *testing.B) { benchmarkCompile(b, n) })
	}
	b.Run("log", benchmarkLog)
	b.Run("flood", benchmarkFlood)
	for _, n := range sizes([]int{500}, 16) {
		b.Run(fmt.Sprintf("crowd=%d", n), func(b *testing.B) { benchmarkCrowd(b, n) })
	}
	b.Run("memory", benchmarkServeMemory)
}

// benchmarkJobs measures a trivial job from the request to its end, so many at once.
func benchmarkJobs(b *testing.B, at int) {
	s := newServe(b)
	r := inTurns(b, tails, []candidate{
		together("job", at, func() error { return s.do(b.Context(), trivial, 3) }),
		together("fork", at, func() error { return fork(b.Context(), trivial, 3) }),
	})
	r.latencies("ms", "job", "fork")
	for _, name := range []string{"job", "fork"} {
		r.median(name+"-rate", name+"-jobs/s")
	}
	r.ratios("fork", "job")
}

// together measures do when it is called by so many at once: how long each takes, in milliseconds, and how many
// are done in a second.
func together(name string, at int, do func() error) candidate {
	return candidate{name: name, run: func(r *results) error {
		var mu sync.Mutex // guards r
		var group errgroup.Group
		began := time.Now()
		for range at {
			group.Go(func() error {
				begin := time.Now()
				err := do()
				took := millis(time.Since(begin))
				mu.Lock()
				defer mu.Unlock()
				r.add(name, took)
				return err
			})
		}
		err := group.Wait()
		r.add(name+"-rate", float64(at)/time.Since(began).Seconds())
		return err
	}}
}

// benchmarkJobsInARow measures how many trivial jobs a step runner does in a second when there is always one
// to be done for each of 16 callers.
func benchmarkJobsInARow(b *testing.B) {
	jobs := sizes([]int{500}, 32)[0]
	s := newServe(b)
	row := func(name string, do func() error) candidate {
		return candidate{name: name, run: func(r *results) error {
			begin := time.Now()
			err := withOpeners(jobs, do)
			r.add(name, float64(jobs)/time.Since(begin).Seconds())
			return err
		}}
	}
	r := inTurns(b, usual, []candidate{
		row("job", func() error { return s.do(b.Context(), trivial, 3) }),
		row("fork", func() error { return fork(b.Context(), trivial, 3) }),
	})
	r.medians("jobs/s", "job", "fork")
	r.ratios("fork", "job")
}
