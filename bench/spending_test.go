package bench

import (
	"runtime"
	"time"
)

// spending is the processor time of transfers, and how often the manager's end allocated memory. One transfer is too
// short for the clock of /proc; all together are not.
type spending struct {
	gigabytes  float64
	vm, client time.Duration
	allocs     float64
}

// rate measures a transfer of n bytes in MB/s, and its cost for both ends.
func (r *results) rate(name string, n int64, transfer func() error) error {
	before, err := readSpent()
	if err != nil {
		return err
	}
	allocs := mallocs()
	own, err := ownCPU() // last, as to read the others takes time
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := transfer(); err != nil {
		return err
	}
	took := time.Since(begin)
	ownAfter, err := ownCPU()
	if err != nil {
		return err
	}
	allocs = mallocs() - allocs
	after, err := readSpent()
	if err != nil {
		return err
	}
	r.add(name, float64(n)/mega/took.Seconds())
	if r.spent[name] == nil {
		r.spent[name] = new(spending)
	}
	s := r.spent[name]
	s.gigabytes += float64(n) / giga
	s.vm += after.vm - before.vm
	s.client += ownAfter - own + after.clients - before.clients
	s.allocs += allocs
	return nil
}

// mallocs returns how often this process has allocated memory so far.
func mallocs() float64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.Mallocs)
}

// costs reports the processor time of both ends for each name, as name-vm-s/GB and name-client-s/GB, and the
// allocations of the manager's end, as name-allocs/MB.
func (r *results) costs(names ...string) {
	for _, name := range names {
		if s := r.spent[name]; s != nil && s.gigabytes > 0 {
			r.b.ReportMetric(s.vm.Seconds()/s.gigabytes, name+"-vm-s/GB")
			r.b.ReportMetric(s.client.Seconds()/s.gigabytes, name+"-client-s/GB")
			r.b.ReportMetric(s.allocs/s.gigabytes*mega/giga, name+"-allocs/MB")
		}
	}
}
