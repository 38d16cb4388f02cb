package bench

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// capacities are the numbers of builds on a VM, which the instance executor calls CapacityPerInstance, that
// benchmarks go through.
func capacities() []int { return sizes([]int{1, 8, 32, 128, 512}, 1, 8) }

// sizes returns all, or with -short, which only sees that the benchmarks run, few instead.
func sizes[T any](all []T, few ...T) []T {
	if testing.Short() {
		return few
	}
	return all
}

func capacityName(n int) string { return fmt.Sprintf("CapacityPerInstance=%d", n) }

// A spawner is one way to start something.
type spawner struct {
	name  string
	every int // as a candidate's, where one is started at a time
	most  int // how many it can start at once; if zero, any number
	why   string
	// refuses allows starts beyond the VM's limits to fail; the failures are counted. Those of stepmux must not fail.
	refuses bool
	// spawn starts it, waits for the first sign of life, and for its end. It returns how long the first took, in
	// microseconds.
	spawn func() (float64, error)
}

// at returns candidates that start n at once. Those that cannot are missing.
func at(b *testing.B, n int, all []spawner) []candidate {
	b.Helper()
	var found []candidate
	for _, s := range all {
		if s.most != 0 && n > s.most {
			missing(b, s.name, fmt.Sprintf("not with %d at once: %s", n, s.why))
			continue
		}
		every := s.every
		if n > 1 {
			every = 1 // there are enough of them
		}
		found = append(found, candidate{name: s.name, every: every, run: func(r *results) error { return s.run(r, n) }})
	}
	return found
}

// run starts n at once.
func (s spawner) run(r *results, n int) error {
	took, errs := make([]float64, n), make([]error, n)
	begin := time.Now()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { took[i], errs[i] = s.spawn() })
	}
	wg.Wait()
	refused := 0
	for i, err := range errs {
		if err != nil {
			refused++
			continue
		}
		r.add(s.name, took[i])
	}
	if refused == n || refused > 0 && !s.refuses {
		return errors.Join(errs[:min(n, 8)]...)
	}
	if s.refuses && n > 1 {
		r.add(s.name+"-refused", float64(refused)/float64(n))
	}
	if n > 1 {
		r.add(s.name+"-all", float64(n-refused)/time.Since(begin).Seconds())
	}
	return nil
}

// spawned reports the measurements of candidates that start n at once, in relation to each of others.
func (r *results) spawned(n int, all []candidate, others ...string) {
	list := names(all)
	r.latencies("µs", list...)
	for _, other := range others {
		r.ratios(other, list...)
	}
	if n == 1 {
		return
	}
	for _, name := range list {
		r.median(name+"-all", name+"-builds/s") // start and end
		if refused := r.values[name+"-refused"]; slices.ContainsFunc(refused, func(share float64) bool { return share > 0 }) {
			r.median(name+"-refused", name+"-refused/1")
		}
	}
}
